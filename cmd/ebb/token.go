package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/internal/trust"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

const tokenHelp = `Roles are reader (asks), writer (writes and forgets keys) and admin (makes and changes namespaces), each of the namespaces that stand
behind it, where * is any number of letters; each may do what those before it may. An operator may do everything: also change, back up and restore the cluster, and
make and revoke tokens.

From the first token on callers without one may do nothing. Commands take theirs from --token-file or EBB_TOKEN.
Before the first token of a cluster of several nodes, they must be able to prove to each other that they are nodes: by
TLS, or by ebb serve --cluster-secret-file.`

func newToken(s *session) *cobra.Command {
	return children(
		&cobra.Command{Use: "token", Short: "Make, list and revoke tokens, which say who may do what", Long: "Make, list and revoke tokens, which say who may do what.\n\n" + tokenHelp},
		newTokenCreate(s),
		&cobra.Command{
			Use: "list", Short: "List the tokens: their names and roles, not the tokens", Args: noArgs, Example: "  ebb token list",
			RunE: func(cmd *cobra.Command, _ []string) error { return s.listTokens(cmd) },
		},
		newTokenRevoke(s),
		newTokenSecret(s),
	)
}

func newTokenSecret(s *session) *cobra.Command {
	var out secretFile
	cmd := &cobra.Command{
		Use: "secret", Short: "Make a new random secret, for ebb serve --cluster-secret-file or " +
			"--root-token-file", Args: noArgs,
		Example: `  ebb token secret --out cluster.secret
  ebb token secret --out root.token`,
		RunE: func(*cobra.Command, []string) error {
			f, err := out.open()
			if err != nil {
				return err
			}
			defer f.drop()
			text := client.NewTokenText()
			return s.writeSecret(f, text, map[string]string{"token": text})
		},
	}
	out.add(cmd)
	return cmd
}

func newTokenCreate(s *session) *cobra.Command {
	var roles []string
	var ttl string
	var yes bool
	var out secretFile
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Make a token and print it, once", Args: argsBetween(1, 1, "NAME"),
		Long: "Make a token and print it, once, or put it into a file (--out): the cluster keeps its SHA-256 alone.\n\n" + tokenHelp,
		Example: `  ebb token create ops --role operator --out ops.token
  ebb token create dashboard --role reader=clicks --role 'reader=web-*' --expires 90d
  ebb token create collector --role writer=clicks`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := proto.CheckTokenName(args[0]); err != nil {
				return err
			}
			grants, err := grantsOf(roles)
			if err != nil {
				return err
			}
			lasts, err := optional("expires", ttl, readSpan)
			if err != nil {
				return err
			}
			var expires time.Time
			if lasts != nil && *lasts > 0 {
				expires = time.Now().Add(*lasts)
			}
			f, err := out.open()
			if err != nil {
				return err
			}
			defer f.drop()
			return s.createToken(cmd, f, client.NewToken{Name: args[0], Expires: expires, Grants: grants, MayEnd: yes})
		},
	}
	cmd.Flags().StringSliceVar(&roles, "role", nil, "`ROLE=NAMESPACES`, or operator (repeatable): reader=clicks, writer=web-*, admin=*")
	cmd.Flags().StringVar(&ttl, "expires", "", "how long it lasts: 12h, 90d, 1y, or none (default none)")
	cmd.Flags().BoolVar(&yes, "yes", false, "make the first token even if it has an end, after which no token could be made")
	out.add(cmd)
	return cmd
}

// grantsOf reads roles in the form of the command line.
func grantsOf(words []string) ([]client.Grant, error) {
	var out []client.Grant
	for _, word := range words {
		g, err := grantOf(word)
		if err != nil {
			return nil, err
		}
		out = append(out, g)
	}
	if len(out) == 0 {
		return nil, usagef("--role is missing: what may the token do? --role reader=NAMESPACE, writer=NAMESPACE, admin=NAMESPACE or operator")
	}
	return out, nil
}

// grantOf reads one role, and refuses a role that no node would accept.
func grantOf(word string) (g client.Grant, err error) {
	name, namespaces, _ := strings.Cut(word, "=")
	role, known := proto.RoleNamed(name)
	if !known {
		return g, noneOf("--role", name, []string{"reader", "writer", "admin", "operator"})
	}
	if err := proto.CheckGrant(&ebbv1.Grant{Role: role, Namespaces: namespaces}); err != nil {
		return g, err
	}
	return client.Grant{Role: role, Namespaces: namespaces}, nil
}

type tokenJSON struct {
	Name      string   `json:"name"`
	Token     string   `json:"token,omitempty"` // only the answer of create has it
	Roles     []string `json:"roles"`
	Created   string   `json:"created"`
	Expires   string   `json:"expires,omitempty"`
	CreatedBy string   `json:"created_by,omitempty"`
}

func tokenRow(t client.Token) tokenJSON {
	out := tokenJSON{Name: t.Name, Created: t.Created.UTC().Format(time.RFC3339), CreatedBy: t.CreatedBy}
	if !t.Expires.IsZero() {
		out.Expires = t.Expires.UTC().Format(time.RFC3339)
	}
	for _, g := range t.Grants {
		out.Roles = append(out.Roles, strings.TrimSuffix(proto.RoleName(g.Role)+"="+g.Namespaces, "="))
	}
	return out
}

func (s *session) createToken(cmd *cobra.Command, f *pendingFile, t client.NewToken) error {
	ctx, c, done, err := s.connect(cmd)
	if err != nil {
		return err
	}
	defer done()
	text, made, err := c.MakeToken(ctx, t)
	if text == "" {
		return err
	}
	unknown := err // nil if the token was certainly created
	if far := s.unencrypted(); far != "" {
		fmt.Fprintf(s.term.err, "warning: connections to %s are not encrypted: whoever hears the network hears every token that is shown there; see `ebb cert`\n", far)
	}
	if unknown != nil {
		made = client.Token{Name: t.Name, Grants: t.Grants, Expires: t.Expires, Created: time.Now()}
	}
	row := tokenRow(made)
	row.Token = text
	if s.output != "json" {
		fmt.Fprintf(s.term.err, "token %s (%s); it is shown this once\n", t.Name, strings.Join(row.Roles, ", "))
	}
	switch err := s.writeSecret(f, text, row); {
	case err != nil && unknown != nil:
		return fmt.Errorf("token %s is lost, if it was made: %w; `ebb token list` shows whether it was: %w", t.Name, err, unknown)
	case err != nil:
		return fmt.Errorf("token %s is made, and lost: `ebb token revoke %s`, and make it again: %w", t.Name, t.Name, err)
	case unknown != nil:
		return fmt.Errorf("token %s: keep its text until `ebb token list` shows whether it was made: %w", t.Name, unknown)
	}
	return nil
}

func (s *session) listTokens(cmd *cobra.Command) error {
	ctx, c, done, err := s.connect(cmd)
	if err != nil {
		return err
	}
	defer done()
	list, inForce, err := c.Tokens(ctx)
	if err != nil {
		return err
	}
	rows := make([]tokenJSON, len(list))
	for i, t := range list {
		rows[i] = tokenRow(t)
	}
	if s.output == "json" {
		return printJSON(s.term.out, struct {
			InForce bool        `json:"in_force"`
			Tokens  []tokenJSON `json:"tokens"`
		}{inForce, rows})
	}
	if !inForce {
		fmt.Fprintln(s.term.err, "there are no tokens: everybody may do everything")
		return nil
	}
	var cells [][]string
	for _, r := range rows {
		cells = append(cells, []string{r.Name, strings.Join(r.Roles, ","), r.Created, orDash(r.Expires), orDash(r.CreatedBy)})
	}
	head := "NAME\tROLES\tCREATED\tEXPIRES\tMADE BY"
	if s.output == "tsv" {
		head = ""
	}
	return s.printTable(head, cells)
}

func newTokenRevoke(s *session) *cobra.Command {
	var open bool
	cmd := &cobra.Command{
		Use: "revoke NAME", Short: "End a token", Args: argsBetween(1, 1, "NAME"), Example: "  ebb token revoke dashboard",
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, c, done, err := s.connect(cmd)
			if err != nil {
				return err
			}
			defer done()
			if err := c.RevokeToken(ctx, args[0], open); err != nil {
				return err
			}
			if s.output == "json" {
				return printJSON(s.term.out, struct {
					Revoked string `json:"revoked"`
				}{args[0]})
			}
			fmt.Fprintf(s.term.err, "token %s is revoked; what it watches ends within seconds\n", args[0])
			return nil
		},
	}
	cmd.Flags().BoolVar(&open, "open", false, "revoke it even if it is the last: then everybody may do everything")
	return cmd
}

// tokenVariable names the environment variable that holds a token.
const tokenVariable = "EBB_TOKEN"

// token returns the token that this command sends to the nodes; "" for none. A flag wins over the variable with the
// token, and that variable over the one with the name of a file.
func (s *session) token() (string, error) {
	if text := os.Getenv(tokenVariable); text != "" && !s.given["token-file"] {
		return strings.TrimSpace(text), nil
	}
	if s.tokenFile == "" {
		return "", nil
	}
	texts, warning, err := readTokens("--token-file", s.tokenFile)
	if err != nil {
		return "", err
	}
	if warning != "" {
		fmt.Fprintln(s.term.err, "warning:", warning)
	}
	return texts[0], nil
}

// tokenFileMax bounds what is read of a file of tokens, in bytes.
const tokenFileMax = 64 << 10

// readTokens reads a file of tokens, one a line; it skips empty lines and lines that begin with #. It refuses a file
// that others can read, or returns a warning: see trust.ReadSecret.
func readTokens(flag, path string) (out []string, warning string, err error) {
	raw, warning, err := trust.ReadSecret(path)
	if err != nil {
		e := proto.AsError(err)
		return nil, "", usageError{proto.ErrBadRequest.Errorf("%s %s", flag, e.Message).WithHint(e.Hint)}
	}
	if len(raw) > tokenFileMax {
		return nil, "", usagef("%s %s: it is too large for a file of tokens", flag, path)
	}
	for line := range strings.Lines(string(raw)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			out = append(out, line)
		}
	}
	if len(out) == 0 {
		return nil, "", usagef("%s %s: it holds none; `ebb token secret` makes one", flag, path)
	}
	return out, warning, nil
}
