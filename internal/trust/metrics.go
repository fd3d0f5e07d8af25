package trust

import "github.com/prometheus/client_golang/prometheus"

var (
	descEnd     = prometheus.NewDesc("ebb_node_certificate_end_seconds", "When the node's certificate, or the first of a file of CAs, expires: seconds since 1970.", []string{"file"}, nil)
	descReloads = prometheus.NewDesc("ebb_node_certificate_reloads_total", "Times that certificates were taken from files that had changed.", nil, nil)
	descBroken  = prometheus.NewDesc("ebb_node_certificate_files_broken", "1 while the files of certificates cannot be used, and those from before stay in use.", nil, nil)
)

// Describe implements prometheus.Collector.
func (s *Store) Describe(to chan<- *prometheus.Desc) {
	to <- descEnd
	to <- descReloads
	to <- descBroken
}

// Collect implements prometheus.Collector.
func (s *Store) Collect(to chan<- prometheus.Metric) {
	for file, at := range s.held.Load().ends {
		to <- prometheus.MustNewConstMetric(descEnd, prometheus.GaugeValue, float64(at.Unix()), file)
	}
	to <- prometheus.MustNewConstMetric(descReloads, prometheus.CounterValue, float64(s.reloads.Load()))
	broken := 0.0
	if s.broken.Load() {
		broken = 1
	}
	to <- prometheus.MustNewConstMetric(descBroken, prometheus.GaugeValue, broken)
}
