package client_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	ebb "github.com/ebbdb/ebb/client"
)

// The text of a token is made here and shown to the nodes from then on; they never send it back. Without it, and when
// it is revoked, nothing goes.
func TestTokens(t *testing.T) {
	w := newWorld(t, 3)
	ctx := context.Background()
	open := w.connect()
	ops, made, err := open.CreateToken(ctx, "ops", time.Time{}, ebb.Grant{Role: ebb.RoleOperator})
	if err != nil || made.Name != "ops" || !strings.HasPrefix(ops, "ebb_") {
		t.Fatal(made, err)
	}
	if err := open.Increment(ctx, "default", ebb.Increment{Key: "k", Bin: "b"}); !errors.Is(err, ebb.ErrUnauthenticated) {
		t.Errorf("without a token: %v", err)
	}
	operator := w.connect(ebb.WithToken(ops))
	expires := time.Now().Add(time.Hour).Truncate(time.Microsecond)
	text, _, err := operator.CreateToken(ctx, "writer", expires, ebb.Grant{Role: ebb.RoleWriter, Namespaces: "default"})
	if err != nil {
		t.Fatal(err)
	}
	list, inForce, err := operator.Tokens(ctx)
	if err != nil || !inForce || len(list) != 2 || list[1].Name != "writer" || list[1].CreatedBy != "ops" || !list[1].Expires.Equal(expires) || list[1].Grants[0].Namespaces != "default" {
		t.Errorf("the list is %+v, %v, %v", list, inForce, err)
	}
	writer := w.connect(ebb.WithToken(text))
	if err := writer.Increment(ctx, "default", ebb.Increment{Key: "k", Bin: "b"}); err != nil {
		t.Error(err)
	}
	if _, err := writer.Distribution(ctx, "default", "k"); err != nil {
		t.Error(err)
	}
	if err := writer.RevokeToken(ctx, "ops", false); !errors.Is(err, ebb.ErrPermissionDenied) {
		t.Errorf("a writer revokes: %v", err)
	}
	if err := operator.RevokeToken(ctx, "writer", false); err != nil {
		t.Error(err)
	}
	if err := writer.Increment(ctx, "default", ebb.Increment{Key: "k", Bin: "b"}); !errors.Is(err, ebb.ErrUnauthenticated) {
		t.Errorf("with a token that was revoked: %v", err)
	}
}

// A revocation whose answer was lost is asked for again, and is no failure when the token has gone. One of a token that
// was never there is.
func TestRevokingAgain(t *testing.T) {
	w := newWorld(t, 3)
	ctx := context.Background()
	ops, _, err := w.connect().CreateToken(ctx, "ops", time.Time{}, ebb.Grant{Role: ebb.RoleOperator})
	if err != nil {
		t.Fatal(err)
	}
	operator := w.connect(ebb.WithToken(ops))
	if _, _, err := operator.CreateToken(ctx, "dash", time.Time{}, ebb.Grant{Role: ebb.RoleReader, Namespaces: "*"}); err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	w.loseRevocations = 2
	w.mu.Unlock()
	if err := operator.RevokeToken(ctx, "dash", false); err != nil {
		t.Errorf("a token that is revoked: %v", err)
	}
	if err := operator.RevokeToken(ctx, "dash", false); !errors.Is(err, ebb.ErrBadRequest) || !strings.Contains(err.Error(), "there is no token dash") {
		t.Errorf("a token that is not there: %v", err)
	}
}
