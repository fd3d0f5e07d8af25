package trust

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"time"

	"github.com/ebbdb/ebb/proto"
)

// skew is how far the clock of another machine may be behind before it refuses a new certificate.
const skew = 5 * time.Minute

// Authority issues certificates.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	PEM  []byte // its certificate
}

// Request is the content of a new certificate.
type Request struct {
	Name  string
	Roles []string
	Hosts []string // DNS names and IPs; for servers
	From  time.Time
	To    time.Time
}

// NewAuthority makes a CA with this name that is valid from one time to the other.
func NewAuthority(name string, from, to time.Time) (*Authority, error) {
	a := new(Authority)
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: from.Add(-skew), NotAfter: to,
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		return nil, err
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	a.PEM = pemOf("CERTIFICATE", der)
	return a, nil
}

// ReadAuthority reads a CA that NewAuthority made, from its certificate and key files.
func ReadAuthority(certFile, keyFile string) (*Authority, error) {
	cert, err := ReadFile(certFile)
	if err != nil {
		return nil, err
	}
	key, _, err := ReadSecret(keyFile) // the warning about a key that its group can read is left out
	if err != nil {
		return nil, err
	}
	both, err := pair(certFile, keyFile, cert, key)
	if err != nil {
		return nil, err
	}
	signer, ok := both.PrivateKey.(*ecdsa.PrivateKey)
	if !ok || !both.Leaf.IsCA {
		return nil, proto.ErrBadRequest.Errorf("%s and %s are not a CA that `ebb cert` made", certFile, keyFile)
	}
	return &Authority{cert: both.Leaf, key: signer, PEM: cert}, nil
}

// Key returns the CA's private key in PEM. Its holder can issue certificates of nodes.
func (a *Authority) Key() ([]byte, error) { return keyPEM(a.key) }

// Issue makes a certificate and its key, both in PEM. until is when it expires, which is never after the CA.
func (a *Authority) Issue(r Request) (cert, key []byte, until time.Time, err error) {
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, until, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: r.Name}, NotBefore: r.From.Add(-skew), NotAfter: r.To, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if template.NotAfter.After(a.cert.NotAfter) {
		template.NotAfter = a.cert.NotAfter
	}
	for _, role := range r.Roles {
		template.Subject.OrganizationalUnit = append(template.Subject.OrganizationalUnit, unitPrefix+role)
	}
	for _, host := range r.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	if len(r.Hosts) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, own.Public(), a.key)
	if err != nil {
		return nil, nil, until, err
	}
	key, err = keyPEM(own)
	return pemOf("CERTIFICATE", der), key, template.NotAfter, err
}

// Pair does what Issue does, for a tls.Config.
func (a *Authority) Pair(r Request) (tls.Certificate, error) {
	cert, key, _, err := a.Issue(r)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(cert, key)
}

func keyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	return pemOf("PRIVATE KEY", der), err
}

func pemOf(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
