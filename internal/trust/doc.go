// Package trust identifies the other end of a connection, by TLS 1.3 with certificates that are read again when their
// files change.
//
// A certificate's subject names its holder (CN). Its organizational units "ebb:<role>" are the roles that its issuer
// grants. Nodes have the role "node", which only the CA of the cluster can grant.
package trust
