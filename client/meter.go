package client

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// meter counts what the client does, for its own metrics.
type meter struct {
	requests   atomic.Int64 // ApplyRequests
	commands   atomic.Int64 // in them
	failures   atomic.Int64 // ApplyRequests without a response
	busy       atomic.Int64 // nanoseconds spent waiting for them
	retries    atomic.Int64 // commands sent again after a pause
	redirects  atomic.Int64 // commands sent again at once, to the leader that was named
	increments atomic.Int64 // applied
	lost       atomic.Int64 // increments given up
	sessions   atomic.Int64 // opened
	expired    atomic.Int64 // sessions
	asks       atomic.Int64 // AskRequests
	questions  atomic.Int64 // in them
	unanswered atomic.Int64 // requests with questions that got no response
	waited     atomic.Int64 // direct calls that waited at the writeLimiter
	unsent     atomic.Int64 // of these: not sent before their deadline
}

func (m *meter) applied(commands int, took time.Duration, err error) {
	m.requests.Add(1)
	m.commands.Add(int64(commands))
	m.busy.Add(int64(took))
	if err != nil {
		m.failures.Add(1)
	}
}

func (m *meter) asked(questions int, err error) {
	m.asks.Add(1)
	m.questions.Add(int64(questions))
	if err != nil {
		m.unanswered.Add(1)
	}
}

// series pairs each counter with its name.
func (m *meter) series() []struct {
	name, help string
	value      *atomic.Int64
} {
	return []struct {
		name, help string
		value      *atomic.Int64
	}{
		{"apply_requests_total", "Requests with commands.", &m.requests},
		{"apply_failures_total", "Requests with commands that got no response.", &m.failures},
		{"commands_total", "Commands sent, each try counted.", &m.commands},
		{"command_retries_total", "Commands sent again after a pause.", &m.retries},
		{"command_redirects_total", "Commands sent again to the leader that was named.", &m.redirects},
		{"increments_applied_total", "Increments acknowledged.", &m.increments},
		{"increments_undelivered_total", "Increments given up.", &m.lost},
		{"sessions_opened_total", "Producer sessions asked for.", &m.sessions},
		{"sessions_expired_total", "Producer sessions found expired.", &m.expired},
		{"ask_requests_total", "Requests with questions.", &m.asks},
		{"questions_total", "Questions sent, each try counted.", &m.questions},
		{"ask_failures_total", "Requests with questions that got no response.", &m.unanswered},
		{"calls_held_total", "Calls that waited, since the cluster acknowledged less than was written.", &m.waited},
		{"calls_unsent_total", "Calls that waited until their deadline, and were not sent.", &m.unsent},
	}
}

const metricPrefix = "ebb_client_"

// Describe and Collect make a meter a prometheus.Collector.
func (m *meter) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, ch) }

func (m *meter) Collect(ch chan<- prometheus.Metric) {
	for _, s := range m.series() {
		desc := prometheus.NewDesc(metricPrefix+s.name, s.help, nil, nil)
		ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(s.value.Load()))
	}
	desc := prometheus.NewDesc(metricPrefix+"apply_seconds_total", "Time spent waiting for requests with commands.", nil, nil)
	ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(m.busy.Load())/1e9)
}

func (m *meter) register(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	return r.Register(m)
}

func (m *meter) unregister(r prometheus.Registerer) {
	if r != nil {
		r.Unregister(m)
	}
}
