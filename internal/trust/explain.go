package trust

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Fault is why a handshake failed: a sentence about the other end ("its ..."), and a hint what to do about it.
type Fault struct {
	Message, Hint string
	cause         error
}

func (f *Fault) Error() string { return f.Message }

// Unwrap returns the error of package tls.
func (f *Fault) Unwrap() error { return f.cause }

// Plainly makes a Fault from the error of a handshake. It names the hosts of a wrong certificate, and until when an
// expired one was valid. It returns any other error unchanged. now is when the handshake failed.
func Plainly(err error, now time.Time) error {
	var (
		unknown x509.UnknownAuthorityError
		host    x509.HostnameError
		invalid x509.CertificateInvalidError
		record  tls.RecordHeaderError
	)
	fault := func(hint, format string, args ...any) error {
		return &Fault{Message: fmt.Sprintf(format, args...), Hint: hint, cause: err}
	}
	switch {
	case err == nil:
		return nil
	case errors.As(err, &unknown):
		return fault("--tls-ca names the file with the CA that issued it", "its certificate is of a CA that is not trusted here")
	case errors.As(err, &host):
		return fault("use one of its names as the address, or say with --tls-server-name which one to expect", "its certificate is for %s, not for %s", holdsFor(host.Certificate), host.Host)
	case errors.As(err, &invalid):
		return fault(invalidHint, "%s", invalidity(&invalid, now))
	case errors.As(err, &record):
		return fault("is it the right port? leave out --tls-ca if the nodes have no TLS", "it does not speak TLS")
	}
	_, alert, _ := strings.Cut(err.Error(), alertWords)
	for words, said := range alerts {
		if strings.HasPrefix(alert, words) {
			return fault("--tls-cert and --tls-key name a certificate of a CA that the nodes trust, and its key", "%s", said)
		}
	}
	return err
}

// alertWords stand in an error of crypto/tls before the alert that the other end sent.
const alertWords = "remote error: tls: "

// IsAlert reports whether an error is an alert that the other end sent in a handshake.
func IsAlert(err error) bool { return strings.Contains(err.Error(), alertWords) }

const invalidHint = "is the clock of this machine right? if so, a new certificate has to be put in its place: `ebb cert` makes one"

// alerts are the alerts of the other end about our certificate, in TLS's words and in ours.
var alerts = map[string]string{
	"certificate required":          "it asks for a certificate of the client",
	"unknown certificate authority": "it does not trust the CA of the client's certificate",
	"expired certificate":           "the client's certificate has expired, or is not valid yet",
	"bad certificate":               "it refuses the client's certificate",
}

func invalidity(e *x509.CertificateInvalidError, now time.Time) string {
	c := e.Cert
	switch {
	case e.Reason == x509.Expired && now.Before(c.NotBefore):
		return fmt.Sprintf("the certificate of %s is not valid before %s, and it is %s here", c.Subject, stamp(c.NotBefore), stamp(now))
	case e.Reason == x509.Expired:
		return fmt.Sprintf("the certificate of %s expired at %s", c.Subject, stamp(c.NotAfter))
	case e.Reason == x509.IncompatibleUsage:
		return fmt.Sprintf("the certificate of %s is not for this use", c.Subject)
	}
	return e.Error()
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// holdsFor lists the host names of a certificate.
func holdsFor(c *x509.Certificate) string {
	names := append([]string(nil), c.DNSNames...)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	if len(names) == 0 {
		return "no host"
	}
	return strings.Join(names, ", ")
}
