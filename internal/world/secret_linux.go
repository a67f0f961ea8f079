package world

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"time"

	"hocket.example/hocket/internal/files"
)

// secret lets processes of different nodes prove to each other that they know the run's token. No
// data of a run is sent over a connection before both ends have proved this, and the token itself
// is never sent.
//
// Every connection is TLS 1.3, which encrypts messages and detects changed, dropped, repeated or reordered ones. If the
// user provides no certificate, the server presents one that was created for this process. Such a certificate
// authenticates nothing; the proofs authenticate both ends.
type secret struct {
	token []byte
	tls   *tls.Config
}

// proofLabel is the label of the value that TLS derives from a connection's keys for the proofs
// (RFC 5705, RFC 9266).
const proofLabel = "EXPORTER-hocket-nodes"

// newSecret reads the user's certificate, or creates one.
func newSecret(o Options) (*secret, error) {
	s := &secret{token: []byte(o.Token), tls: &tls.Config{
		MinVersion:                  tls.VersionTLS13,
		InsecureSkipVerify:          true, // the peer's certificate is compared with this process's, or has no meaning
		SessionTicketsDisabled:      true,
		DynamicRecordSizingDisabled: true,
	}}
	if o.Cert == "" {
		cert, err := newCertificate()
		if err != nil {
			return nil, fmt.Errorf("making a key for connections between nodes: %w", err)
		}
		s.tls.Certificates = []tls.Certificate{cert}
		return s, nil
	}
	const mostPEM = 1 << 20
	shown, err := files.Read(o.Cert, mostPEM)
	if err != nil {
		return nil, fmt.Errorf("the certificate of HOCKET_TLS_CERT: %w", err)
	}
	key, err := files.Read(o.Key, mostPEM)
	if err != nil {
		return nil, fmt.Errorf("the key of HOCKET_TLS_KEY: %w", err)
	}
	cert, err := tls.X509KeyPair(shown, key)
	if err != nil {
		return nil, fmt.Errorf("the certificate of HOCKET_TLS_CERT, %s, and its key: %w", o.Cert, err)
	}
	pinned := cert.Certificate[0]
	s.tls.Certificates = []tls.Certificate{cert}
	s.tls.ClientAuth = tls.RequireAnyClientCert
	s.tls.VerifyPeerCertificate = func(shown [][]byte, _ [][]*x509.Certificate) error {
		if len(shown) == 0 || subtle.ConstantTimeCompare(shown[0], pinned) != 1 {
			return errors.New("the peer has another certificate: set HOCKET_TLS_CERT to the same certificate in all processes")
		}
		return nil
	}
	return s, nil
}

// newCertificate creates a key and a certificate, which TLS requires.
func newCertificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// errToken is returned if the other end does not know the token.
var errToken = errors.New("the peer does not know this run's token: set HOCKET_TOKEN to the same text in all processes " +
	"of the run, and HOCKET_MEET to a port at which no other program listens")

// dial secures a connection that this process has opened. This process sends its proof first. A foreign process that
// only listens therefore receives only the proof, and one that only connects receives nothing.
func (s *secret) dial(ctx context.Context, conn net.Conn) (net.Conn, error) {
	conn.SetDeadline(time.Now().Add(greeting))
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	c := tls.Client(conn, s.tls)
	theirs := make([]byte, sha256.Size)
	client, server, err := s.proofs(c)
	if err == nil {
		_, err = c.Write(client)
	}
	if err == nil {
		_, err = io.ReadFull(c, theirs)
	}
	switch {
	case err != nil:
		return nil, err
	case !hmac.Equal(theirs, server):
		return nil, errToken
	}
	conn.SetDeadline(time.Time{})
	return c, nil
}

// accept secures a connection that another process has opened, within the read deadline of conn.
func (s *secret) accept(conn net.Conn) (net.Conn, error) {
	conn.SetWriteDeadline(time.Now().Add(greeting))
	c := tls.Server(conn, s.tls)
	theirs := make([]byte, sha256.Size)
	client, server, err := s.proofs(c)
	if err == nil {
		_, err = io.ReadFull(c, theirs)
	}
	if err != nil {
		return nil, err
	}
	if !hmac.Equal(theirs, client) {
		_, _ = c.Write(make([]byte, sha256.Size)) // an invalid proof, so that the other end reports this, too
		return nil, errToken
	}
	if _, err := c.Write(server); err != nil {
		return nil, err
	}
	conn.SetWriteDeadline(time.Time{})
	return c, nil
}

// proofs returns the proofs of the two ends of a connection that they know the token. Both proofs cover a value that is
// known only to the two ends of this connection, so a proof cannot be relayed from another connection or reflected.
func (s *secret) proofs(c *tls.Conn) (client, server []byte, err error) {
	if err := c.Handshake(); err != nil {
		return nil, nil, err
	}
	state := c.ConnectionState()
	bound, err := state.ExportKeyingMaterial(proofLabel, nil, sha256.Size)
	if err != nil {
		return nil, nil, err
	}
	prove := func(role string) []byte {
		mac := hmac.New(sha256.New, s.token)
		mac.Write([]byte(role))
		mac.Write(bound)
		return mac.Sum(nil)
	}
	return prove("client"), prove("server"), nil
}
