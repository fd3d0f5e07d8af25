package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/node"
	"github.com/ebbdb/ebb/proto"
)

// probePaths are the paths of the probes at the admin listener.
var probePaths = map[string]string{"live": "/livez", "startup": "/startupz", "ready": "/readyz"}

// probeBytesMax is how many bytes of an answer are read.
const probeBytesMax = 4 << 10

func newProbe(s *session) *cobra.Command {
	var admin string
	var encrypted bool
	cmd := &cobra.Command{
		Use: "probe live|startup|ready", Short: "Ask a node on this machine whether it is alive, started or ready",
		Long: `Probe asks the admin listener of a node and ends with 0 if the answer is yes, 1 if it is no, and
4 if there is none.

  live      the process answers, whatever the cluster does
  startup   it has read what it has on disk
  ready     it has joined its groups, knows their leaders and is not stopping

It is for health checks in images that have neither a shell nor curl.`,
		Example: `  ebb probe ready
  ebb probe live --admin 127.0.0.1:7081`,
		Args: argsBetween(1, 1, "live|startup|ready"), ValidArgs: wordsOf(probePaths),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, ok := probePaths[args[0]]
			if !ok {
				return noneOf("probe", args[0], wordsOf(probePaths))
			}
			where, err := probeURL(admin, path, encrypted)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), s.timeout)
			defer cancel()
			said, err := probe(ctx, where)
			if err != nil {
				return err
			}
			switch s.output {
			case "json":
				return printJSON(s.term.out, map[string]string{"probe": args[0], "answer": said})
			case "tsv":
				return s.printTable("", [][]string{{args[0], said}})
			}
			_, err = fmt.Fprintln(s.term.out, said)
			return err
		},
	}
	cmd.Flags().StringVar(&admin, "admin", node.DefaultAdmin, "admin `address` of the node; one that stands for all of the machine's is asked on loopback")
	cmd.Flags().BoolVar(&encrypted, "tls-admin", false, "ask over TLS, as the node was told by its own flag of that name; whose certificate it is does not matter to a probe")
	return cmd
}

// probeURL returns the URL of a probe at a node that listens at admin.
func probeURL(admin, path string, encrypted bool) (string, error) {
	host, port, err := net.SplitHostPort(admin)
	if err != nil {
		return "", usagef("--admin %q: write it as host:port; the node must not have it turned off", admin)
	}
	switch ip, err := netip.ParseAddr(host); {
	case host == "", err == nil && ip.Is4() && ip.IsUnspecified():
		host = "127.0.0.1"
	case err == nil && ip.IsUnspecified():
		host = "::1"
	}
	scheme := "http://"
	if encrypted {
		scheme = "https://"
	}
	return scheme + net.JoinHostPort(host, port) + path, nil
}

// probe returns the answer to a probe. If the node's answer is not OK, it is the error.
func probe(ctx context.Context, where string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, where, nil)
	if err != nil {
		return "", usagef("--admin: %v", err)
	}
	direct := &http.Client{Transport: &http.Transport{Proxy: nil, DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	resp, err := direct.Do(req)
	if err != nil {
		return "", silent(ctx, req.URL.Host, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, probeBytesMax))
	if err != nil {
		return "", silent(ctx, req.URL.Host, err)
	}
	said := strings.TrimSpace(string(body))
	if resp.StatusCode != http.StatusOK {
		return "", errors.New(said)
	}
	return said, nil
}

// silent returns the error of a node that gave no answer.
func silent(ctx context.Context, addr string, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	var late net.Error
	if errors.As(err, &late) && late.Timeout() {
		return proto.ErrDeadline.Errorf("no answer from the admin address %s in time", addr).WithHint("the node's log says what it does; --timeout waits longer")
	}
	var asked *url.Error
	if errors.As(err, &asked) {
		err = asked.Err // without the method and the URL, which the message has already
	}
	var dialled *net.OpError
	if errors.As(err, &dialled) {
		err = dialled.Err
	}
	hint := "--admin or EBB_ADMIN names the address that the node was given by its own --admin; is the node running?"
	if errors.Is(err, http.ErrSchemeMismatch) {
		hint = "the node does not speak TLS there: leave out --tls-admin"
	}
	return proto.ErrUnreachable.Errorf("cannot reach the admin address %s: %v", addr, err).WithHint(hint)
}
