package hocket

import (
	"encoding/json"
	"fmt"

	"hocket.example/hocket/internal/certify"
	"hocket.example/hocket/internal/certify/issue"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// certificate returns the certificate of a plan that has been checked.
func certificate(p *plan.Plan) ([]byte, error) {
	s, err := certify.Plan(p)
	if err != nil {
		return nil, fmt.Errorf("no certificate: %w", err)
	}
	c, err := issue.Certificate(s)
	if err != nil {
		return nil, fmt.Errorf("no certificate: %w", err)
	}
	if err := certify.Check(s, c); err != nil {
		return nil, fmt.Errorf("no certificate: %w", err)
	}
	return json.Marshal(c)
}

// certified returns diagnostics if text is not a valid certificate of the plan.
func certified(p *plan.Plan, text []byte) error {
	c, err := certify.Parse(text)
	if err != nil {
		return rejected(p.Program, err)
	}
	s, err := certify.Plan(p)
	if err == nil {
		err = certify.Check(s, c)
	}
	if err != nil {
		return rejected(p.Program, err)
	}
	return nil
}

// rejected returns the error about a certificate for the program in the given file.
func rejected(file string, why error) error {
	return ir.Diagnostics{{Severity: ir.Error, File: file, Kind: "certificate",
		Message: "the certificate is rejected: " + why.Error(),
		Help:    "hocket check --certificate writes a certificate for this plan"}}
}
