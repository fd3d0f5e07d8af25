package backup

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// objects is an S3 service with one bucket, "backups", for those who have the key "AKEY".
type objects struct {
	mu       sync.Mutex // guards what follows
	all      map[string][]byte
	fail     int // so many requests, from now on
	requests int
}

func (o *objects) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.requests++
	body, err := io.ReadAll(r.Body)
	hash := sha256.Sum256(body)
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	refuse := func(status int, code string) {
		w.WriteHeader(status)
		fmt.Fprintf(w, "<?xml version=\"1.0\"?><Error><Code>%s</Code><Message>because</Message></Error>", code)
	}
	switch {
	case err != nil || r.Header.Get("X-Amz-Content-Sha256") != hex.EncodeToString(hash[:]):
		refuse(http.StatusBadRequest, "XAmzContentSHA256Mismatch")
	case o.fail > 0:
		o.fail--
		refuse(http.StatusServiceUnavailable, "SlowDown")
	case !strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 Credential=AKEY/") || !strings.Contains(r.Header.Get("Authorization"), "/eu-north-1/s3/"):
		refuse(http.StatusForbidden, "InvalidAccessKeyId")
	case bucket != "backups":
		refuse(http.StatusNotFound, "NoSuchBucket")
	case r.Method == http.MethodPut:
		o.all[key] = body
	case r.Method == http.MethodDelete:
		delete(o.all, key)
		w.WriteHeader(http.StatusNoContent)
	case key == "":
		o.list(w, r.URL.Query().Get("prefix"), r.URL.Query().Get("continuation-token"))
	case o.all[key] == nil:
		refuse(http.StatusNotFound, "NoSuchKey")
	default:
		_, _ = w.Write(o.all[key]) // a caller that has gone is no matter
	}
}

// list writes a page of two names.
func (o *objects) list(w io.Writer, prefix, after string) {
	var page struct {
		XMLName  struct{} `xml:"ListBucketResult"`
		Contents []struct {
			Key string
		}
		IsTruncated           bool
		NextContinuationToken string
	}
	for _, key := range slices.Sorted(maps.Keys(o.all)) {
		if !strings.HasPrefix(key, prefix) || key <= after {
			continue
		}
		if page.IsTruncated = len(page.Contents) == 2; page.IsTruncated {
			page.NextContinuationToken = page.Contents[1].Key
			break
		}
		page.Contents = append(page.Contents, struct{ Key string }{key})
	}
	_ = xml.NewEncoder(w).Encode(page) // as above
}

// serveObjects starts a service, and names it to those who look into the environment.
func serveObjects(t *testing.T) *objects {
	o := &objects{all: map[string][]byte{}}
	s := httptest.NewServer(o)
	t.Cleanup(s.Close)
	for name, value := range map[string]string{
		"AWS_ENDPOINT_URL": s.URL, "AWS_ENDPOINT_URL_S3": "", "AWS_REGION": "eu-north-1", "AWS_ACCESS_KEY_ID": "AKEY", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_SESSION_TOKEN": "",
		"AWS_PROFILE": "", "AWS_SHARED_CREDENTIALS_FILE": filepath.Join(t.TempDir(), "credentials"),
	} {
		t.Setenv(name, value)
	}
	return o
}

func openStore(t *testing.T, place string) Store {
	t.Helper()
	store, err := Open(place)
	if err != nil {
		t.Fatal(err)
	}
	if b, ok := store.(*bucket); ok {
		b.pause = 1 // nanosecond
	}
	return store
}

// Every store keeps objects by their names, tells of those that are not there, and lists.
func TestStores(t *testing.T) {
	serveObjects(t)
	for _, place := range []string{t.TempDir(), filepath.Join(t.TempDir(), "not", "there yet"), "s3://backups", "s3://backups/of/this cluster/"} {
		t.Run(place, func(t *testing.T) {
			ctx := t.Context()
			store := openStore(t, place)
			if names, err := store.List(ctx, "chunks/"); err != nil || len(names) != 0 {
				t.Errorf("list of nothing: %v, %v", names, err)
			}
			var want []string
			for i := range 5 {
				name := fmt.Sprintf("chunks/%02x/%d", i, i)
				want = append(want, name)
				if err := store.Put(ctx, name, fmt.Appendf(nil, "data %d", i)); err != nil {
					t.Fatal(err)
				}
			}
			if err := store.Put(ctx, "manifests/one", []byte("m")); err != nil {
				t.Fatal(err)
			}
			if names, err := store.List(ctx, "chunks/"); err != nil || !slices.Equal(names, want) {
				t.Errorf("%v, not %v: %v", names, want, err)
			}
			if err := store.Put(ctx, want[0], []byte("anew")); err != nil {
				t.Fatal(err)
			}
			if data, err := store.Get(ctx, want[0], 4); err != nil || string(data) != "anew" {
				t.Errorf("%q, %v", data, err)
			}
			if _, err := store.Get(ctx, want[0], 3); !errors.Is(err, errLong) {
				t.Errorf("longer than asked for: %v", err)
			}
			for range 2 {
				if err := store.Delete(ctx, want[0]); err != nil {
					t.Error(err)
				}
			}
			if _, err := store.Get(ctx, want[0], 4); !errors.Is(err, ErrMissing) {
				t.Errorf("deleted: %v", err)
			}
		})
	}
}

// A file that was half written has no name that is listed.
func TestDirectoryListsWholeFiles(t *testing.T) {
	place := t.TempDir()
	store := openStore(t, place)
	if err := os.MkdirAll(filepath.Join(place, "chunks", "00"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(place, "chunks", "00", ".new-1"), []byte("ha"), 0o600); err != nil {
		t.Fatal(err)
	}
	if names, err := store.List(t.Context(), "chunks/"); err != nil || len(names) != 0 {
		t.Errorf("%v, %v", names, err)
	}
}

// A service that is busy is asked again, and one that does not want us is not.
func TestBucketFailures(t *testing.T) {
	o := serveObjects(t)
	ctx := t.Context()
	store := openStore(t, "s3://backups/x")
	o.fail = s3Tries - 1
	if err := store.Put(ctx, "a", bytes.Repeat([]byte("z"), 1000)); err != nil {
		t.Error(err)
	}
	o.fail = s3Tries
	if _, err := store.Get(ctx, "a", 1000); err == nil || !strings.Contains(err.Error(), "503 SlowDown") {
		t.Error(err)
	}
	before := o.requests
	if err := openStore(t, "s3://nobody's/x").Put(ctx, "a", nil); err == nil || !strings.Contains(err.Error(), "there is no bucket nobody's") {
		t.Error(err)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "OTHER")
	if _, err := openStore(t, "s3://backups").List(ctx, ""); err == nil || !strings.Contains(err.Error(), "refuses these credentials") {
		t.Error(err)
	}
	if o.requests != before+2 {
		t.Errorf("%d requests for two that were refused", o.requests-before)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	if err := os.WriteFile(os.Getenv("AWS_SHARED_CREDENTIALS_FILE"), []byte("[default]\naws_access_key_id = AKEY\naws_secret_access_key = secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if data, err := openStore(t, "s3://backups/x").Get(ctx, "a", 1000); err != nil || len(data) != 1000 {
		t.Errorf("with credentials of a file: %d bytes, %v", len(data), err)
	}
	for place, endpoint := range map[string]string{"s3://": o.url(), "s3://user:secret@backups": o.url(), "gs://backups": o.url(), "": o.url(), "s3://backups": "localhost:9000"} {
		t.Setenv("AWS_ENDPOINT_URL", endpoint)
		if _, err := Open(place); err == nil {
			t.Errorf("%q at %q is a store", place, endpoint)
		}
	}
}

func (o *objects) url() string { return os.Getenv("AWS_ENDPOINT_URL") }

// A service whose list has no end is refused, as is one that says that there is more and not where: half a list is
// none.
func TestBucketListsWithoutAnEnd(t *testing.T) {
	page := func(key, next string) string {
		return "<ListBucketResult><Contents><Key>" + key + "</Key></Contents><IsTruncated>true</IsTruncated><NextContinuationToken>" + next + "</NextContinuationToken></ListBucketResult>"
	}
	const empty = "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>%s</NextContinuationToken></ListBucketResult>"
	for name, c := range map[string]struct {
		answer func(n int) string
		want   string
	}{
		"tokens in turn":   {func(n int) string { return page(fmt.Sprintf("k%d", n), string("ab"[n%2])) }, "says that there are more, and not where"},
		"the same token":   {func(n int) string { return page(fmt.Sprintf("k%d", n), "a") }, "says that there are more, and not where"},
		"no token":         {func(n int) string { return page(fmt.Sprintf("k%d", n), "") }, "says that there are more, and not where"},
		"the same page":    {func(n int) string { return page("k", strconv.Itoa(n)) }, "1000 pages without another one"},
		"pages of nothing": {func(n int) string { return fmt.Sprintf(empty, strconv.Itoa(n)) }, "1000 pages without another one"},
	} {
		asked := 0
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if asked++; asked > 2*idlePagesMax {
				http.Error(w, "no more of this", http.StatusForbidden)
				return
			}
			_, _ = io.WriteString(w, c.answer(asked)) // a caller that has gone is no matter
		}))
		t.Setenv("AWS_ENDPOINT_URL", s.URL)
		t.Setenv("AWS_REGION", "eu-north-1")
		store, err := Open("s3://backups/p")
		if err != nil {
			t.Fatal(err)
		}
		if names, err := store.List(t.Context(), ""); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v, want %q", name, names, err, c.want)
		}
		s.Close()
	}
}

// A page of a list may have no name, where much was deleted, and the next one some.
func TestBucketListsWithEmptyPages(t *testing.T) {
	pages := []string{"a", "", "", "b", "", "c"}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at, _ := strconv.Atoi(r.URL.Query().Get("continuation-token"))
		contents := ""
		if pages[at] != "" {
			contents = "<Contents><Key>p/" + pages[at] + "</Key></Contents>"
		}
		_, _ = fmt.Fprintf(w, "<ListBucketResult>%s<IsTruncated>%t</IsTruncated><NextContinuationToken>%d</NextContinuationToken></ListBucketResult>", contents, at+1 < len(pages), at+1)
	}))
	defer s.Close()
	t.Setenv("AWS_ENDPOINT_URL", s.URL)
	t.Setenv("AWS_REGION", "eu-north-1")
	store, err := Open("s3://backups/p")
	if err != nil {
		t.Fatal(err)
	}
	if names, err := store.List(t.Context(), ""); err != nil || strings.Join(names, " ") != "a b c" {
		t.Errorf("%q, %v", names, err)
	}
}
