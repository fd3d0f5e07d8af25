package backup

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// FuzzAnswers: whatever a service answers in the place of S3, a store has names in order, bytes within its limit, or an
// error that says something.
func FuzzAnswers(f *testing.F) {
	f.Add(200, []byte(`<ListBucketResult><Contents><Key>p/chunks/b</Key></Contents><Contents><Key>p/a</Key></Contents><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken></ListBucketResult>`))
	f.Add(404, []byte(`<Error><Code>NoSuchKey</Code><Message>because</Message></Error>`))
	f.Add(404, []byte(`<Error><Code>NoSuchBucket</Code></Error>`))
	f.Add(403, []byte(`not <xml`))
	f.Add(302, []byte(``))
	f.Add(200, []byte(`<!DOCTYPE a [<!ENTITY b "bbbb"><!ENTITY c "&b;&b;&b;&b;">]><ListBucketResult><Contents><Key>&c;</Key></Contents></ListBucketResult>`))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		if status < 200 || status > 499 || status == http.StatusTooManyRequests {
			t.Skip() // it would be asked again
		}
		asked := 0
		b := &bucket{
			http: &http.Client{Transport: answers(func(*http.Request) (*http.Response, error) {
				asked++
				return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(body))}, nil
			})},
			endpoint: &url.URL{Scheme: "http", Host: "s3.test"}, region: "r", name: "backups", prefix: "p/", place: "s3://backups/p",
			creds: credentials.NewStatic("", "", "", credentials.SignatureAnonymous), pause: 1,
		}
		names, err := b.List(context.Background(), "")
		if err == nil && !slices.IsSorted(names) || asked > 2 || err != nil && strings.TrimSpace(err.Error()) == "" {
			t.Fatalf("%d requests, %q, %v", asked, names, err)
		}
		data, err := b.Get(context.Background(), "a", 100)
		if err == nil && len(data) > 100 || len(body) > 100 && status < 300 && !errors.Is(err, errLong) {
			t.Fatalf("%d bytes, %v", len(data), err)
		}
	})
}

type answers func(*http.Request) (*http.Response, error)

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) { return a(r) }
