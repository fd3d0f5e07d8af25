package pay

import "testing"

func TestPay(t *testing.T) {
	a := Account{sum: 10}
	if a.Pay(-1) == nil || a.Pay(0) != nil || a.Pay(3) != nil || a.sum != 7 {
		t.Fatal(a.sum)
	}
}

func TestBoth(t *testing.T) {
	for i := range 4 {
		if a, b := i&1 > 0, i&2 > 0; Both(a, b) != (i == 3) {
			t.Fatal(a, b)
		}
	}
}

func TestFirst(t *testing.T) {
	if i := First([]int{4, 5, 6}, 5); i != 1 {
		t.Fatal(i)
	}
	if i := First([]int{4}, 5); i != 1 {
		t.Fatal(i)
	}
}

func TestNumbers(t *testing.T) {
	if Shift(2) != 17 || Part(3) != 1.5 {
		t.Fatal(Shift(2), Part(3))
	}
}

func TestSkipped(t *testing.T) { t.Skip("it says nothing of any mutant") }
