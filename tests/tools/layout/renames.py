#!/usr/bin/env python3
"""Renames types where they are defined and wherever they are imported, and other words in the files of a scope.

Usage: renames.py TREE. The tables are types.txt and words.txt beside this file:
  types.txt   MODULE OLD NEW          a type of a module of src/, with all that names it
  words.txt   SCOPE OLD NEW           a word in code, in `{…}` of texts and in back-quoted comments; SCOPE is a list of
                                      globs with commas between them
"""
import sys, os, re, collections, fnmatch
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
HERE = os.path.dirname(os.path.abspath(__file__))
from rs import *
import graph
ROOT = sys.argv[1]; SRC = os.path.join(ROOT, 'src')

def rows(name):
    for n, line in enumerate(open(os.path.join(HERE, name)), 1):
        line = line.split('#')[0].strip()
        if not line: continue
        parts = line.split()
        if len(parts) != 3: raise SystemExit('%s:%d: %r' % (name, n, line))
        yield parts

def all_files():
    for top in ('src', 'tests', 'benches', 'fuzz'):
        for d, ds, fs in os.walk(os.path.join(ROOT, top)):
            ds[:] = [x for x in ds if x not in ('target',)]
            for n in fs:
                if n.endswith('.rs'): yield os.path.relpath(os.path.join(d, n), ROOT)

def mod_for(rel):
    return mod_of(rel[4:]) if rel.startswith('src/') and rel != 'src/main.rs' else None

def enum_variants(code):
    """Offsets of names of variants where enums are declared."""
    out = set()
    for m in re.finditer(r'\benum\s+\w+[^{;]*\{', code):
        d, j = 1, m.end()
        expect = True
        while d:
            c = code[j]
            if d == 1 and expect and (c.isalpha()):
                out.add(j); expect = False
            if c in '{([': d += 1
            if c in '})]': d -= 1
            if d == 1 and c == ',': expect = True
            if c == '#' and d == 1:
                # an attribute
                k = code.index('[', j); dd = 0
                while True:
                    if code[k] == '[': dd += 1
                    if code[k] == ']':
                        dd -= 1
                        if dd == 0: break
                    k += 1
                j = k
            j += 1
    return out

def types():
    table = {}
    for module, old, new in rows('types.txt'):
        table[(tuple(module.split('::')), old)] = new
    info = graph.load(SRC)
    for (mod, old) in table:
        if mod not in info or old not in info[mod]['defs']:
            inner = mod in info and re.search(r'\b(struct|enum|trait|type) %s\b' % old, info[mod]['code'])
            if not inner: print('renames: no %s in %s' % (old, '::'.join(mod)), file=sys.stderr)
    def resolve(ab):
        """Absolute path -> (defining module, item, index of the item in the path)."""
        for k in range(len(ab) - 1, -1, -1):
            if ab[:k] in info:
                mod = ab[:k]; break
        else: return None
        if len(ab) == len(mod): return None
        t = graph.target(info, ab[:len(mod) + 1])
        return (t, ab[len(mod)], len(mod))
    for rel in all_files():
        path = os.path.join(ROOT, rel); text = open(path).read(); code = mask(text)
        mod = mod_for(rel)
        inner = graph.inner_mods(code)
        def depth(pos): return sum(1 for a, b, _ in inner if a < pos < b)
        def absolute(p, pos):
            if p[0] == '': return tuple(p[2:]) if p[1] == 'tollgate' else None
            if p[0] == 'tollgate': return tuple(p[1:])
            if mod is None: return None
            if p[0] == 'crate': return tuple(p[1:])
            return graph.absolute(info, mod, p, pos)
        names, modules, edits = {}, {}, {}
        if mod is not None:
            for (m, old), new in table.items():
                if m == mod: names[old] = new
            for m in info.get(mod, {}).get('mods', ()):
                if mod + (m,) in info: modules[m] = mod + (m,)
        spans = []
        globs = []
        explicit = set()
        heads = []
        for m in USE.finditer(code):
            leaves, end = parse_tree(code, m.end()); spans.append((m.start(), end))
            heads.append((m.end(), leaves[0][0][0]))
            for p, a in leaves:
                if p[-1] not in ('*', 'self'): explicit.add(a or p[-1])
                ab = absolute(p, m.start())
                if ab is None: continue
                ab = tuple(x for x in ab if x != '<inner>')
                if ab and ab[-1] == 'self': ab = ab[:-1]
                if ab and ab[-1] == '*':
                    if ab[:-1] in info: globs.append(ab[:-1])
                    continue
                if ab in info or any(k[:len(ab)] == ab for k in info): modules[a or ab[-1]] = ab
                r = resolve(ab)
                if r and (r[0], r[1]) in table:
                    new = table[(r[0], r[1])]
                    # the leaf itself; where several leaves have one name, the module in front tells
                    edits.setdefault('leaf', []).append((m.start(), end, p, new))
                    if not a: names[p[-1]] = new
        for g in globs:
            for (m, old), new in table.items():
                if m == g: names.setdefault(old, new)
            if g in info:
                for p, a, pub, pos, ind in info[g]['uses']:
                    ab = graph.absolute(info, g, p, pos)
                    r = ab and resolve(tuple(x for x in ab if x != '<inner>'))
                    if r and (r[0], r[1]) in table and not a: names.setdefault(p[-1], table[(r[0], r[1])])
                for m in info[g]['mods']:
                    if g + (m,) in info: modules.setdefault(m, g + (m,))
                for p, a, pub, pos, ind in info[g]['uses']:
                    ab = graph.absolute(info, g, p, pos)
                    if ab and ab in info: modules.setdefault(a or ab[-1], ab)
            for n in explicit & set(names):
                if not any(p[-1] == n for _, _, p, _ in edits.get('leaf', [])): del names[n]
        if mod is not None:
            for (m, old), new in table.items():
                if m == mod and old in info.get(mod, {}).get('defs', ()): names[old] = new
        out = []
        for at, head in heads:
            if head in names and code.startswith(head, at): out.append((at, at + len(head), names[head]))
        variants = enum_variants(code)
        for a, b, p, new in edits.get('leaf', []):
            # position of the leaf inside the use tree
            for q, at in leaf_positions(code, a, b):
                if q == p: out.append((at, at + len(p[-1]), new))
        for m in re.finditer(r'(?<![\w$])[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*', code):
            if any(a <= m.start() < b for a, b in spans): continue
            segs = m.group(0).split('::')
            before = code[:m.start()].rstrip()
            if before.endswith('::') and segs[0] == 'tollgate' and not re.search(r'\w::$', before): pass
            elif before.endswith('::'): continue
            line = code[code.rfind('\n', 0, m.start()) + 1:m.start()]
            if re.fullmatch(r'\s+type\s+', line): continue   # an associated type
            if len(segs) == 1 and re.match(r'\s*=(?![=>])', code[m.end():]) and re.search(r'[<,]\s*$', before): continue   # as `Item = …` in bounds
            if segs[0] in names and m.start() not in variants and (not code[:m.start()].endswith('.') or code[:m.start()].endswith('..')):
                out.append((m.start(), m.start() + len(segs[0]), names[segs[0]])); continue
            if len(segs) > 1:
                ab = None
                if segs[0] in ('crate', 'super', 'self', 'tollgate'): ab = absolute(segs, m.start())
                elif segs[0] in modules: ab = modules[segs[0]] + tuple(segs[1:])
                if ab is None: continue
                if '<inner>' in ab:
                    n = [i for i, s in enumerate(segs) if s in names]
                    continue
                r = resolve(ab)
                if r and (r[0], r[1]) in table:
                    # which segment is it?
                    k = len(segs) - (len(ab) - r[2])
                    off = sum(len(s) + 2 for s in segs[:k])
                    if segs[k] == r[1]: out.append((m.start() + off, m.start() + off + len(r[1]), table[(r[0], r[1])]))
        # comments: what is in back quotes
        for m in re.finditer(r'//[^\n]*', text):
            if code[m.start():m.start() + 2].strip(): continue
            for q in re.finditer(r'`([^`]*)`', m.group(0)):
                for w in re.finditer(r'(?<![\w:.])([A-Z]\w*)|((?:\w+::)+)([A-Z]\w*)', q.group(1)):
                    if w.group(1):
                        name, at = w.group(1), w.start(1)
                        new = names.get(name)
                    else:
                        name, at = w.group(3), w.start(3)
                        segs = w.group(2)[:-2].split('::') + [name]
                        ab = absolute(segs, m.start()) if segs[0] in ('crate', 'super', 'self', 'tollgate') else (modules[segs[0]] + tuple(segs[1:]) if segs[0] in modules else None)
                        r = ab and resolve(tuple(x for x in ab if x != '<inner>'))
                        new = table.get((r[0], r[1])) if r else None
                    if new: 
                        s = m.start() + q.start(1) + at
                        out.append((s, s + len(name), new))
        # texts that a Debug writes
        for m in re.finditer(r'debug_(?:struct|tuple)\("(\w+)"\)', text):
            if m.group(1) in names: out.append((m.start(1), m.end(1), names[m.group(1)]))
        apply(path, text, out)

def leaf_positions(code, a, b):
    """(path, offset of its last segment) of each leaf of a use statement."""
    i = code.index('use', a) + 3
    def ws(i):
        while code[i].isspace(): i += 1
        return i
    out = []
    def tree(i, prefix):
        path = list(prefix); i = ws(i)
        if code.startswith('::', i): path.append(''); i += 2
        last = None
        while True:
            i = ws(i)
            if code[i] == '{':
                i += 1
                while True:
                    i = ws(i)
                    if code[i] == '}': return i + 1
                    i = tree(i, path); i = ws(i)
                    if code[i] == ',': i += 1
            if code[i] == '*': return i + 1
            m = re.compile(r'(r#)?\w+').match(code, i)
            path.append(m.group(0)); last = i; i = ws(m.end())
            if code.startswith('::', i): i += 2; continue
            m = re.compile(r'as\s+\w+').match(code, i)
            if m: i = m.end()
            out.append((tuple(path), last)); return i
    tree(i, [])
    return out

def apply(path, text, out):
    if not out: return
    res, at = [], 0
    for a, b, r in sorted(set(out)):
        if a < at: continue
        res.append(text[at:a]); res.append(r); at = b
    res.append(text[at:])
    open(path, 'w').write(''.join(res))

def words():
    table = list(rows('words.txt'))
    for rel in all_files():
        mine = {}
        careful = set()
        for scope, old, new in table:
            for g in scope.lstrip('?').split(','):
                if fnmatch.fnmatch(rel, g):
                    if scope.startswith('?') and old in mine: continue
                    mine[old] = new
                    if scope.startswith('?'): careful.add(old)
                    else: careful.discard(old)
        if not mine: continue
        path = os.path.join(ROOT, rel); text = open(path).read(); code = mask(text)
        there = set(re.findall(r'\w+', code))
        for old in careful:
            # a variable must not take the name of another one
            if old in there and mine[old] in there:
                print('renames: %s keeps %s, for it has %s' % (rel, old, mine[old]), file=sys.stderr)
                del mine[old]
        if not mine: continue
        pat = re.compile(r'(?<![\w$])(%s)\b' % '|'.join(map(re.escape, sorted(mine, key=len, reverse=True))))
        out = []
        existing = set(re.findall(r'\w+', code))
        for old, new in mine.items():
            if new in existing and old in existing and '-v' in sys.argv: print('renames: %s: both %s and %s' % (rel, old, new), file=sys.stderr)
        for m in pat.finditer(text):
            if code[m.start()] != ' ':
                out.append((m.start(), m.end(), mine[m.group(1)])); continue
            # in a text or a comment
            line = text.rfind('\n', 0, m.start()) + 1
            end = text.find('\n', m.start())
            before, after = text[line:m.start()], text[m.end():end]
            k = before.find('//')
            in_comment = k >= 0 and not code[line + k:line + k + 2].strip()
            if in_comment:
                if before.count('`') % 2 == 1: out.append((m.start(), m.end(), mine[m.group(1)]))
            elif before.endswith('{') and not before.endswith('{{') and re.match(r'[:}]', after):
                out.append((m.start(), m.end(), mine[m.group(1)]))
        apply(path, text, out)

types()
words()
