package backup

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"
	"github.com/minio/minio-go/v7/pkg/signer"
)

const (
	// s3Tries is how often a request is tried if its failure may be transient. s3Pause is the pause before the second
	// try; it doubles before each further one.
	s3Tries = 5
	s3Pause = 200 * time.Millisecond
	// s3Timeout is how long one try may take.
	s3Timeout = time.Minute
	// s3PageBytesMax bounds a page of a listing, which has up to 1,000 names.
	s3PageBytesMax = 8 << 20
)

// bucket is a store in an S3-compatible object store. It needs four requests of the protocol. Of minio-go it uses only
// the signatures and the search for credentials: the whole of it would make the program a tenth larger.
type bucket struct {
	http     *http.Client
	endpoint *url.URL
	region   string
	creds    *credentials.Credentials
	name     string
	prefix   string // "" or ends with '/'
	place    string
	pause    time.Duration
}

// openBucket returns the store at s3://bucket/prefix. The endpoint and the credentials come from the environment or
// from the file that AWS's tools read. The variables are AWS_ENDPOINT_URL (of a service other than AWS), AWS_REGION,
// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN. AWS_PROFILE names a profile of
// AWS_SHARED_CREDENTIALS_FILE (~/.aws/credentials).
func openBucket(place string) (Store, error) {
	u, err := url.Parse(place)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" {
		return nil, fmt.Errorf("%s is not s3://bucket/prefix", place)
	}
	region := cmp.Or(os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"), "us-east-1")
	endpoint, err := url.Parse(cmp.Or(os.Getenv("AWS_ENDPOINT_URL_S3"), os.Getenv("AWS_ENDPOINT_URL"), "https://s3."+region+".amazonaws.com"))
	if err != nil || endpoint.Host == "" || endpoint.Scheme != "http" && endpoint.Scheme != "https" || strings.Trim(endpoint.Path, "/") != "" {
		return nil, errors.New("AWS_ENDPOINT_URL is not http://host:port or https://host:port")
	}
	prefix := strings.Trim(path.Clean("/"+u.Path), "/")
	if prefix != "" {
		prefix += "/"
	}
	return &bucket{
		http: &http.Client{Timeout: s3Timeout}, endpoint: endpoint, region: region, name: u.Host, prefix: prefix,
		creds: credentials.NewChainCredentials([]credentials.Provider{&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}}),
		place: strings.TrimSuffix(place, "/"), pause: s3Pause,
	}, nil
}

func (b *bucket) String() string { return b.place }

// Put implements Store. The service checks the hash of the data.
func (b *bucket) Put(ctx context.Context, name string, data []byte) error {
	_, err := b.do(ctx, http.MethodPut, b.prefix+name, nil, data, s3PageBytesMax)
	return err
}

// Get implements Store.
func (b *bucket) Get(ctx context.Context, name string, limit int64) ([]byte, error) {
	return b.do(ctx, http.MethodGet, b.prefix+name, nil, nil, limit)
}

// Delete implements Store.
func (b *bucket) Delete(ctx context.Context, name string) error {
	_, err := b.do(ctx, http.MethodDelete, b.prefix+name, nil, nil, s3PageBytesMax)
	if errors.Is(err, ErrMissing) {
		return nil
	}
	return err
}

// listing is a page of a listing.
type listing struct {
	Contents []struct {
		Key string `xml:"Key"`
	} `xml:"Contents"`
	IsTruncated           bool   `xml:"IsTruncated"`
	NextContinuationToken string `xml:"NextContinuationToken"`
}

// idlePagesMax is how many pages in a row may have no new name: some services send such pages where much was deleted.
const idlePagesMax = 1000

// List implements Store. An incomplete listing is an error: Prune would treat the missing names as absent.
func (b *bucket) List(ctx context.Context, prefix string) ([]string, error) {
	var names []string
	known, tokens := make(map[string]bool), make(map[string]bool)
	idle := 0 // pages in a row without a new name
	for token := ""; ; {
		query := url.Values{"list-type": {"2"}, "prefix": {b.prefix + prefix}}
		if token != "" {
			query.Set("continuation-token", token)
		}
		raw, err := b.do(ctx, http.MethodGet, "", query, nil, s3PageBytesMax)
		if err != nil {
			return nil, err
		}
		var page listing
		if err := xml.Unmarshal(raw, &page); err != nil {
			return nil, fmt.Errorf("%s does not answer as an S3 service does: %w", b.endpoint, err)
		}
		before := len(names)
		for _, object := range page.Contents {
			if !known[object.Key] {
				known[object.Key] = true
				names = append(names, strings.TrimPrefix(object.Key, b.prefix))
			}
		}
		token = page.NextContinuationToken
		idle++
		if len(names) > before {
			idle = 0
		}
		switch {
		case !page.IsTruncated:
			slices.Sort(names)
			return names, nil
		case token == "" || tokens[token]:
			return nil, fmt.Errorf("%s does not list %s to its end: after %d names it says that there are more, and not where", b.endpoint, b.place, len(names))
		case idle == idlePagesMax:
			return nil, fmt.Errorf("%s does not list %s to its end: after %d names there are %d pages without another one, and it says that there are more", b.endpoint, b.place, before, idle)
		}
		tokens[token] = true
	}
}

// refusal is the error that a service answers.
type refusal struct {
	status int
	Code   string `xml:"Code"`
	Text   string `xml:"Message"`
}

func (r *refusal) Error() string {
	return fmt.Sprintf("%s (%d %s)", cmp.Or(r.Text, http.StatusText(r.status)), r.status, r.Code)
}

// do makes a request, retries it if that may help, and returns the body of the answer.
func (b *bucket) do(ctx context.Context, method, key string, query url.Values, body []byte, limit int64) ([]byte, error) {
	pause := b.pause
	for try := 1; ; try++ {
		answer, err := b.once(ctx, method, key, query, body, limit)
		var r *refusal
		said := errors.As(err, &r)
		switch {
		case err == nil || errors.Is(err, errLong):
			return answer, err
		case said && (r.Code == "NoSuchKey" || r.status == http.StatusNotFound && r.Code == "" && key != ""):
			return nil, ErrMissing
		case said && r.Code == "NoSuchBucket":
			return nil, fmt.Errorf("there is no bucket %s at %s: make it first", b.name, b.endpoint)
		case said && (r.status == http.StatusForbidden || r.status == http.StatusUnauthorized):
			return nil, fmt.Errorf("%s refuses these credentials: %w; AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, say which", b.endpoint, err)
		case ctx.Err() != nil, try == s3Tries, said && r.status < http.StatusInternalServerError && r.status != http.StatusTooManyRequests:
			return nil, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		pause *= 2
	}
}

func (b *bucket) once(ctx context.Context, method, key string, query url.Values, body []byte, limit int64) ([]byte, error) {
	req, err := b.request(ctx, method, key, query, body)
	if err != nil {
		return nil, err
	}
	resp, err := b.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode < 300 {
		return readAtMost(resp.Body, limit)
	}
	r := &refusal{status: resp.StatusCode}
	if raw, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10)); err == nil {
		_ = xml.Unmarshal(raw, r) // a proxy may answer a page that is not XML of S3
	}
	return nil, r
}

// request makes and signs a request.
func (b *bucket) request(ctx context.Context, method, key string, query url.Values, body []byte) (*http.Request, error) {
	u := *b.endpoint
	u.Path = "/" + b.name
	if key != "" {
		u.Path += "/" + key
	}
	u.RawPath = s3utils.EncodePath(u.Path)
	u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	hash := sha256.Sum256(body)
	req.Header.Set("X-Amz-Content-Sha256", hex.EncodeToString(hash[:]))
	creds, err := b.creds.GetWithContext(&credentials.CredContext{Client: b.http})
	if err != nil {
		return nil, fmt.Errorf("credentials for %s: %w", b.place, err)
	}
	if creds.AccessKeyID == "" {
		return req, nil // for a service without access control; other services refuse the request
	}
	return signer.SignV4(*req, creds.AccessKeyID, creds.SecretAccessKey, creds.SessionToken, b.region), nil
}
