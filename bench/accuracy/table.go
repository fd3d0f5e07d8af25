package accuracy

import (
	"encoding/csv"
	"io"
	"strconv"
)

var csvHeader = []string{
	"kind", "n", "trials", "bias", "bias_error", "rmse", "theory",
	"q_minus_3", "q_minus_2", "q_minus_1", "q_0", "q_plus_1", "q_plus_2", "q_plus_3", "memory_bytes", "encoded_bytes", "within",
}

// WriteCSV writes rows with a header. Errors are relative, with six digits; an unknown theory is empty.
func WriteCSV(w io.Writer, rows []Row) error {
	out := csv.NewWriter(w)
	if err := out.Write(csvHeader); err != nil {
		return err
	}
	for _, r := range rows {
		theory := ""
		if r.Theory != nil {
			theory = digits(*r.Theory)
		}
		record := []string{r.Kind, strconv.FormatUint(r.N, 10), strconv.Itoa(r.Trials), digits(r.Bias), digits(r.BiasError), digits(r.RMSE), theory}
		for _, q := range r.Quantiles {
			record = append(record, digits(q))
		}
		record = append(record, strconv.Itoa(r.Memory), strconv.Itoa(r.Encoded), strconv.FormatBool(r.Within))
		if err := out.Write(record); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

func digits(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }
