// Command promrules checks files of rules as promtool does (`promtool check rules`), by the same package of Prometheus.
package main

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

func main() {
	wrong, quiet := 0, slog.New(slog.DiscardHandler)
	for _, path := range os.Args[1:] {
		expressions := parser.NewParser(parser.Options{})
		groups, problems := rulefmt.ParseFile(path, false, model.UTF8Validation, expressions, quiet)
		for _, problem := range problems {
			fmt.Fprintln(os.Stderr, problem)
		}
		wrong += len(problems)
		if groups != nil {
			for _, group := range groups.Groups {
				fmt.Println(group.Name, len(group.Rules))
			}
		}
	}
	if wrong > 0 {
		os.Exit(1)
	}
}
