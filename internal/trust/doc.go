// Package trust says who is at the other end of a connection: TLS 1.3 with certificates that are read again when their
// files change.
//
// A certificate's subject names its holder (CN) and, as organizational units "ebb:<role>", the roles that whoever
// issued it grants. Nodes have the role "node", and only the CA of the cluster can grant that one.
package trust
