package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
)

// A mutant is one small change of one file.
type mutant struct {
	File string `json:"file"`
	Func string `json:"func"` // "" outside of functions
	Op   string `json:"op"`
	Old  string `json:"old"` // what the key shows, one line
	New  string `json:"new"`
	Line int    `json:"line"`
	nth  int    // 1, 2, ... among mutants that look the same

	pos, end int    // the text that goes, as offsets in the file
	text     string // what comes instead
}

// key names the mutant by what it changes, not where, so that it stays the
// same when lines move.
func (m *mutant) key() string {
	k := fmt.Sprintf("%s %s %s: %s -> %s", m.File, orDash(m.Func), m.Op, m.Old, m.New)
	if m.nth > 1 {
		k += fmt.Sprintf(" #%d", m.nth)
	}
	return k
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// apply returns src with the change made.
func (m *mutant) apply(src string) string { return src[:m.pos] + m.text + src[m.end:] }

// A scope is a function, or a function literal that is the value of a package
// variable: the unit in which mutants are put beside the original.
type scope struct {
	name    string
	typ     *ast.FuncType
	body    *ast.BlockStmt
	labeled bool
}

// A file is a parsed source file.
type file struct {
	name   string
	src    string
	fset   *token.FileSet
	ast    *ast.File
	scopes []scope
}

func parseFile(name, src string) (*file, error) {
	f := &file{name: name, src: src, fset: token.NewFileSet()}
	var err error
	if f.ast, err = parser.ParseFile(f.fset, name, src, parser.SkipObjectResolution); err != nil {
		return nil, err
	}
	add := func(name string, typ *ast.FuncType, body *ast.BlockStmt) {
		s := scope{name: name, typ: typ, body: body}
		ast.Inspect(body, func(n ast.Node) bool {
			if _, ok := n.(*ast.LabeledStmt); ok {
				s.labeled = true
			}
			return true
		})
		f.scopes = append(f.scopes, s)
	}
	for _, d := range f.ast.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Body != nil {
				add(funcName(d), d.Type, d.Body)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				v, ok := spec.(*ast.ValueSpec)
				if !ok {
					continue
				}
				for i, e := range v.Values {
					ast.Inspect(e, func(n ast.Node) bool {
						lit, ok := n.(*ast.FuncLit)
						if ok {
							add(v.Names[min(i, len(v.Names)-1)].Name, lit.Type, lit.Body)
						}
						return !ok
					})
				}
			}
		}
	}
	return f, nil
}

// funcName is "f" or "Type.f".
func funcName(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return d.Name.Name
	}
	t := d.Recv.List[0].Type
	for {
		switch e := t.(type) {
		case *ast.StarExpr:
			t = e.X
		case *ast.IndexExpr:
			t = e.X
		case *ast.Ident:
			return e.Name + "." + d.Name.Name
		default:
			return d.Name.Name
		}
	}
}

func (f *file) offset(p token.Pos) int { return f.fset.Position(p).Offset }

func (f *file) textOf(n ast.Node) string { return f.src[f.offset(n.Pos()):f.offset(n.End())] }

// scopeAt returns the scope that holds the range, or nil.
func (f *file) scopeAt(pos, end int) *scope {
	for i := range f.scopes {
		s := &f.scopes[i]
		if f.offset(s.body.Lbrace) < pos && end <= f.offset(s.body.Rbrace) {
			return s
		}
	}
	return nil
}

// mutants makes all mutants of the functions that pick accepts. pick gets ""
// for what stands outside of functions.
func (f *file) mutants(pick func(name string) bool) []*mutant {
	c := collector{file: f}
	for _, s := range f.scopes {
		if pick(s.name) {
			c.scope = &s
			c.walk(s.body, s.typ)
		}
	}
	if pick("") {
		c.scope = nil
		for _, d := range f.ast.Decls {
			if g, ok := d.(*ast.GenDecl); ok && (g.Tok == token.CONST || g.Tok == token.VAR) {
				c.walk(g, nil)
			}
		}
	}
	return c.out
}

// A collector walks one scope.
type collector struct {
	file  *file
	scope *scope
	out   []*mutant
}

func (c *collector) add(op string, n ast.Node, text string) {
	c.edit(op, n.Pos(), n.End(), text, c.file.textOf(n), text)
}

func (c *collector) edit(op string, from, to token.Pos, text, old, shown string) {
	m := &mutant{
		File: c.file.name, Op: op, Old: oneLine(old), New: oneLine(shown), Line: c.file.fset.Position(from).Line,
		pos: c.file.offset(from), end: c.file.offset(to), text: text,
	}
	if c.scope != nil {
		m.Func = c.scope.name
	}
	c.out = append(c.out, m)
}

// oneLine joins lines and shortens what is long.
func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > 100 {
		s = s[:97] + "..."
	}
	return s
}

var swapped = map[token.Token]struct{ op, text string }{
	token.LSS:  {"boundary", "<="},
	token.LEQ:  {"boundary", "<"},
	token.GTR:  {"boundary", ">="},
	token.GEQ:  {"boundary", ">"},
	token.EQL:  {"equality", "!="},
	token.NEQ:  {"equality", "=="},
	token.ADD:  {"arithmetic", "-"},
	token.SUB:  {"arithmetic", "+"},
	token.LAND: {"logic", "||"},
	token.LOR:  {"logic", "&&"},
}

func (c *collector) walk(root ast.Node, typ *ast.FuncType) {
	negated := map[ast.Expr]bool{} // conditions, for which != instead of == is the same
	ast.Inspect(root, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			if c.scope == nil {
				return false // a scope of its own
			}
			if n.Body != root {
				c.walk(n.Body, n.Type)
				return false
			}
		case *ast.IfStmt:
			c.negate(n.Cond, negated)
		case *ast.ForStmt:
			if n.Cond != nil {
				c.negate(n.Cond, negated)
			}
		case *ast.SwitchStmt:
			if n.Tag == nil {
				for _, s := range n.Body.List {
					for _, e := range s.(*ast.CaseClause).List {
						c.negate(e, negated)
					}
				}
			}
		case *ast.BinaryExpr:
			if s, ok := swapped[n.Op]; ok && !(s.op == "equality" && negated[n]) {
				x, y := c.file.textOf(n.X), c.file.textOf(n.Y)
				to := n.OpPos + token.Pos(len(n.Op.String()))
				c.edit(s.op, n.OpPos, to, s.text, c.file.textOf(n), x+" "+s.text+" "+y)
			}
		case *ast.BasicLit:
			c.constant(n)
		case *ast.Ident:
			switch n.Name {
			case "true":
				c.add("bool", n, "false")
			case "false":
				c.add("bool", n, "true")
			}
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.Ident); ok && (f.Name == "min" || f.Name == "max") {
				other := map[string]string{"min": "max", "max": "min"}[f.Name]
				c.edit("minmax", f.Pos(), f.End(), other, c.file.textOf(n), other+strings.TrimPrefix(c.file.textOf(n), f.Name))
			}
		case *ast.AssignStmt:
			c.assignment(n)
		case *ast.IncDecStmt:
			text := map[token.Token]string{token.INC: "--", token.DEC: "++"}[n.Tok]
			x := c.file.textOf(n.X)
			c.edit("arithmetic", n.TokPos, n.TokPos+2, text, c.file.textOf(n), x+text)
			c.delete(n)
		case *ast.ExprStmt:
			if _, ok := n.X.(*ast.CallExpr); ok {
				c.delete(n)
			}
		case *ast.ReturnStmt:
			c.returned(n, typ)
		}
		return true
	})
}

func (c *collector) negate(e ast.Expr, negated map[ast.Expr]bool) {
	negated[e] = true
	c.add("negate", e, "!("+c.file.textOf(e)+")")
}

func (c *collector) delete(n ast.Node) {
	c.edit("delete", n.Pos(), n.End(), "", c.file.textOf(n), "nothing")
}

func (c *collector) assignment(n *ast.AssignStmt) {
	switch n.Tok {
	case token.DEFINE:
		return
	case token.ADD_ASSIGN, token.SUB_ASSIGN:
		text := map[token.Token]string{token.ADD_ASSIGN: "-=", token.SUB_ASSIGN: "+="}[n.Tok]
		c.edit("arithmetic", n.TokPos, n.TokPos+2, text, c.file.textOf(n), c.file.textOf(n.Lhs[0])+" "+text+" "+c.file.textOf(n.Rhs[0]))
	}
	c.delete(n)
}

// constant changes an integer by one, both ways.
func (c *collector) constant(n *ast.BasicLit) {
	if n.Kind != token.INT {
		return
	}
	v, err := strconv.ParseInt(n.Value, 0, 62)
	if err != nil {
		return
	}
	c.add("constant", n, strconv.FormatInt(v+1, 10))
	if v > 0 {
		c.add("constant", n, strconv.FormatInt(v-1, 10))
	} else {
		c.add("constant", n, "(-1)")
	}
}

// returned replaces what is returned by the plain values of its type, and
// deletes a return without values.
func (c *collector) returned(n *ast.ReturnStmt, typ *ast.FuncType) {
	if len(n.Results) == 0 {
		c.delete(n)
		return
	}
	if typ == nil || typ.Results == nil {
		return
	}
	var types []string
	for _, f := range typ.Results.List {
		for range max(1, len(f.Names)) {
			types = append(types, c.file.textOf(f.Type))
		}
	}
	if len(types) != len(n.Results) {
		return
	}
	for i, e := range n.Results {
		var plain []string
		switch t := types[i]; {
		case t == "bool":
			plain = []string{"false", "true"}
		case t == "error", strings.HasPrefix(t, "*"):
			plain = []string{"nil"}
		case t == "int":
			plain = []string{"0"}
		}
		for _, p := range plain {
			if old := c.file.textOf(e); old != p && old != "true" && old != "false" { // bool has these
				c.add("return", e, p)
			}
		}
	}
}

// number tells mutants with the same key apart.
func number(ms []*mutant) {
	seen := map[string]int{}
	for _, m := range ms {
		m.nth = 0
		k := m.key()
		seen[k]++
		m.nth = seen[k]
	}
}
