// Package deploy has no code: its tests hold images, manifests, the chart, units,
// alerts and dashboards to what reads them, and to what the binary has.
package deploy
