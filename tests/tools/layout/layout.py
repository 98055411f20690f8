#!/usr/bin/env python3
"""Moves the files of src/ into their folders and rewrites every path to a module or an item.

Usage: layout.py TREE. Reads the tables MOVES, ROOTS and SPLITS of layout_table.py.
"""
import sys, os, re, subprocess, collections
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from rs import *
import graph
from layout_table import MOVES, ROOTS, SPLITS, GLOBS, TRAITS, DROPS

ROOT = sys.argv[1]
SRC = os.path.join(ROOT, 'src')
INFO = graph.load(SRC)

def newmod(mod):
    """The new module of an old one."""
    for k in range(len(mod), 0, -1):
        if mod[:k] in MOVES: return MOVES[mod[:k]] + mod[k:]
    return mod

def content_mod(mod):
    """The new module that holds what the old module's own file holds (not its children)."""
    return ROOTS.get(mod) or newmod(mod)

def split_of(mod, item):
    return SPLITS.get(mod, {}).get(item)

def map_abs(ab, seen=()):
    """Old absolute path (without crate) -> new absolute path."""
    ab = tuple(x for x in ab if x != '<inner>')
    mod = ()
    for k in range(len(ab), -1, -1):
        if ab[:k] in INFO and (k == 0 or True): mod = ab[:k]; break
    rest = ab[len(mod):]
    if rest and rest[0] == 'self': return newmod(mod) + rest
    if not rest: return newmod(mod)
    if rest[0] == '*': return content_mod(mod) + rest
    to = split_of(mod, rest[0])
    if to: return to + rest
    if mod in ROOTS:
        # A re-export of a root that is gone: the definition is named instead.
        if rest[0] not in INFO[mod]['defs']:
            for p, a, pub, pos, ind in INFO[mod]['uses']:
                if (a or p[-1]) == rest[0]:
                    t = graph.absolute(INFO, mod, p, pos)
                    if t and t not in seen: return map_abs(t + rest[1:], seen + (ab,))
        return ROOTS[mod] + rest
    return newmod(mod) + rest

def is_module(ab):
    return tuple(x for x in ab if x != '<inner>') in INFO

class File:
    def __init__(self, path, mod, text):
        self.path, self.mod, self.text = path, mod, text
        self.code = mask(text)
        self.inner = graph.inner_mods(self.code)
        self.aliases = {}

    def depth(self, pos): return sum(1 for a, b, _ in self.inner if a < pos < b)

    def absolute(self, p, pos):
        d = self.depth(pos)
        if p[0] == '': return tuple(p[2:]) if p[1] == 'tollgate' else None
        if p[0] in ('tollgate',) or (p[0] == 'crate' and self.mod is not None): return tuple(p[1:])
        if self.mod is None: return None
        cur = list(self.mod) + ['<inner>'] * d
        p = list(p)
        if p[0] == 'self': return tuple(cur + p[1:])
        if p[0] == 'super':
            while p and p[0] == 'super': cur = cur[:-1]; p = p[1:]
            return tuple(cur + p)
        if p[0] in INFO[self.mod]['mods'] and not d: return tuple(cur + p)
        if p[0] in INFO[self.mod]['mods'] and d and False: return None
        return None

    def render(self, head, new, pos, me):
        """New absolute path -> text segments, from new module `me`."""
        if self.mod is None: return (['', 'tollgate'] if head == '' else ['tollgate']) + list(new)
        if head in ('crate',): return ['crate'] + list(new)
        d = self.depth(pos)
        if me and new[:len(me)] == me and len(new) > len(me) and head not in ('super',) and not d: return list(new[len(me):])
        if me and new[:len(me)] == me and len(new) > len(me) and d: return ['super'] * d + list(new[len(me):])
        par = me[:-1]
        if par and new[:len(par)] == par and len(new) > len(par): return ['super'] * (d + 1) + list(new[len(par):])
        return ['crate'] + list(new)

def tree_text(leaves):
    """leaves: list of (segments, alias) -> text of one use tree (rustfmt makes it pretty)."""
    trie = collections.OrderedDict()
    def add(node, segs, alias):
        if len(segs) == 1:
            node.setdefault(('leaf', segs[0], alias), None)
            return
        node = node.setdefault(('mod', segs[0], None), collections.OrderedDict())
        add(node, segs[1:], alias)
    for segs, alias in leaves: add(trie, list(segs), alias)
    def show(node):
        out = []
        # `a` beside `a::b` is `a::{self, b}`
        mods = {k[1] for k in node if k[0] == 'mod'}
        for k, sub in node.items():
            kind, name, alias = k
            if kind == 'leaf':
                if name in mods and not alias: continue
                out.append(name + (' as ' + alias if alias else ''))
            else:
                inner = show(sub)
                if ('leaf', name, None) in node and 'self' not in inner: inner = ['self'] + inner
                if len(inner) == 1 and inner[0] != 'self' and not inner[0].startswith('self as'): out.append(name + '::' + inner[0])
                elif inner == ['self']: out.append(name)
                else: out.append(name + '::{' + ', '.join(inner) + '}')
        return out
    return show(trie)

def rewrite(f, me, keep=None, extra=()):
    """Text of file `f` as new module `me`; keep(pos) says whether the text at pos stays in this piece."""
    code, text = f.code, f.text
    edits = []   # (start, end, replacement)
    spans = []
    aliases = {}      # old local name -> (old abs, new local name)
    if f.mod is not None:
        for m in INFO[f.mod]['mods']:
            if (f.mod + (m,)) in INFO: aliases[m] = (f.mod + (m,), 0)
    uses = []
    for m in USE.finditer(code):
        leaves, end = parse_tree(code, m.end())
        spans.append((m.start(), end))
        uses.append((m, leaves, end))
        for p, a in leaves:
            ab = f.absolute(p, m.start())
            if ab is None: continue
            if ab and ab[-1] == 'self': ab = ab[:-1]
            if is_module(ab) and ab: aliases[a or ab[-1]] = (tuple(x for x in ab if x != '<inner>'), m.start())
    ident_code = list(code)
    for a, b in spans:
        for k in range(a, b): ident_code[k] = ' '
    def words(test):
        return set(re.findall(r'\w+', ''.join(
            c if keep(i) and (f.depth(i) > 0) == test else ' ' for i, c in enumerate(ident_code))))
    used = words(False) if keep is not None else None
    used_in_tests = words(True) if keep is not None else set()
    def text_of(test):
        return ''.join(c if keep(i) and (f.depth(i) > 0) == test else ' ' for i, c in enumerate(ident_code))
    def is_used(name, test, module=False):
        t = texts[test]
        if (me, name) in DROPS: return False
        if name in TRAITS: return bool(re.search(TRAITS[name], t))
        if module: return bool(re.search(r'(?<![\w.:])%s\s*::' % name, t))
        if name[0].islower():
            return bool(re.search(r'(?<![\w.:])(?<!fn )%s\s*(::|\(|!)|[(,=]\s*%s\s*[),]' % (name, name), t))
        return bool(re.search(r'(?<![\w.:])%s\b' % name, t))
    texts = {t: text_of(t) for t in (False, True)} if keep is not None else {}
    test_uses = []
    alias_new = {}
    for name, (ab, pos) in aliases.items():
        n = newmod(ab)
        alias_new[name] = n[-1] if n else name
    for m, leaves, end in uses:
        # attributes directly in front belong to the statement; they are copied when it is split
        indent, vis = m.group(1), m.group(2)
        # what a module that goes re-exported, and what is in another piece now, is named where it is
        was_public = bool(vis) and keep is not None and (f.mod in ROOTS or me != content_mod(f.mod)) and f.depth(m.start()) == 0
        if was_public: vis = ''
        if not any(f.absolute(p, m.start()) is not None for p, a in leaves) and keep is None: continue
        groups = collections.OrderedDict()
        for p, a in leaves:
            ab = f.absolute(p, m.start())
            if keep is not None and not vis and f.depth(m.start()) == 0:
                name = a or (p[-1] if p[-1] != 'self' else p[-2])
                module = ab is not None and is_module(ab[:-1] if ab[-1] == 'self' else ab)
                if name == '_': name = p[-1]
                if a == '_' and name not in TRAITS: print('layout: trait', name, 'in', f.path, file=sys.stderr)
                if name != '*' and not is_used(name, False, module):
                    if is_used(name, True, module):
                        if ab is None: test_uses.append('use %s%s;' % ('::'.join(p), ' as ' + a if a else ''))
                        else:
                            new = map_abs(ab[:-1] if ab[-1] == 'self' else ab)
                            if new != me + new[-1:]: test_uses.append('use crate::%s%s;' % ('::'.join(new), ' as ' + a if a else ''))
                    continue
            if ab is None:
                groups.setdefault(p[0], []).append((list(p), a)); continue
            own = '<inner>' in ab or (ab and f.mod is not None and ab[:len(f.mod)] == f.mod and len(ab) > len(f.mod) and f.depth(m.start()) and not is_module(ab[:len(f.mod)+1]))
            if own or (f.depth(m.start()) and f.mod is not None and ab == f.mod + ('*',)) or (f.depth(m.start()) and f.mod is not None and len(ab) == len(f.mod) + 1 and ab[:-1] == f.mod and not is_module(ab)):
                # into the own file: `super::*` of tests
                item = ab[len(f.mod)] if len(ab) > len(f.mod) else None
                to = split_of(f.mod, item) if item else None
                if to is None or to == me:
                    groups.setdefault(p[0], []).append((list(p), a)); continue
            new = map_abs(ab)
            if ab and ab[-1] == '*' and (ab[:-1] in GLOBS):
                for g in GLOBS[ab[:-1]]:
                    segs = f.render(p[0], g + ('*',), m.start(), me)
                    groups.setdefault(segs[0], []).append((segs, a))
                continue
            if new and new[-1] != 'self' and new[:len(me)] == me and len(new) == len(me) + 1 and f.depth(m.start()) == 0 and not is_module(ab):
                continue   # is in this very file now
            segs = f.render(p[0], new, m.start(), me)
            groups.setdefault(segs[0], []).append((segs, a))
        stmts = []
        for head, ls in groups.items():
            for t in tree_text(ls): stmts.append('%suse %s;' % (vis, t))
        attrs = ''
        am = re.search(r'((?:[ \t]*#\[[^\n]*\]\n)+)$', text[:m.start()])
        if am and len(stmts) > 1: attrs = am.group(1)
        if am and was_public:
            edits.append((m.start() - len(am.group(1)), end, '\n'.join(stmts))); continue
        rep = ('\n' + attrs).join(indent + s for s in stmts)
        if not stmts and am:
            edits.append((m.start() - len(am.group(1)), end, '')); continue
        edits.append((m.start(), end, rep))
    # inline paths from the root of all crates
    for m in re.finditer(r'(?<![\w:])::tollgate((?:::\w+)+)', code):
        if any(a <= m.start() < b for a, b in spans): continue
        rep = '::tollgate::' + '::'.join(map_abs(tuple(m.group(1).split('::')[1:])))
        if rep != m.group(0): edits.append((m.start(), m.end(), rep))
    # inline paths
    for m in re.finditer(r'(?<![\w:$.])(?:r#)?([A-Za-z_]\w*)((?:\s*::\s*(?:r#)?[A-Za-z_]\w*)+)', code):
        if any(a <= m.start() < b for a, b in spans): continue
        segs = re.sub(r'\s', '', m.group(0)).split('::')
        head = segs[0]
        if head in ('crate', 'super', 'self', 'tollgate'):
            ab = f.absolute(segs, m.start())
            if ab is None: continue
            if '<inner>' in ab: continue
            if f.mod is not None and f.depth(m.start()) and head == 'super' and ab[:len(f.mod)] == f.mod and len(ab) > len(f.mod) and not is_module(ab[:len(f.mod) + 1]) and not split_of(f.mod, ab[len(f.mod)]):
                continue
            new = map_abs(ab)
            out = f.render(head, new, m.start(), me)
            rep = '::'.join(out)
            if rep != '::'.join(segs): edits.append((m.start(), m.end(), rep))
        elif head in aliases:
            ab0, pos = aliases[head]
            child = f.mod is not None and pos == 0 and ab0[:-1] == f.mod
            if child and f.depth(m.start()) and not re.search(r'super\s*::\s*\*', code): continue
            ab = ab0 + tuple(segs[1:])
            new = map_abs(ab)
            nm = newmod(ab0)
            if child and (f.mod in ROOTS):
                out = f.render('super', new, m.start(), me)
            elif new[:len(nm)] == nm: out = [nm[-1]] + list(new[len(nm):])
            elif me and new[:len(me)] == me: out = list(new[len(me):])
            else: out = ['tollgate' if f.mod is None else 'crate'] + list(new)
            rep = '::'.join(out)
            if rep != '::'.join(segs): edits.append((m.start(), m.end(), rep))
    # visibility
    for m in re.finditer(r'pub\s*\(\s*in\s+crate((?:::\w+)+)\s*\)', code):
        new = newmod(tuple(m.group(1).split('::')[1:]))
        edits = [e for e in edits if not (m.start() <= e[0] < m.end())]
        edits.append((m.start(), m.end(), 'pub(in crate::%s)' % '::'.join(new)))
    # mod declarations
    for m in re.finditer(r'(?m)^((?:[ \t]*#\[[^\n]*\]\n)*)[ \t]*(?:pub(?:\s*\([^)]*\))?\s+)?mod\s+(\w+)\s*;[ \t]*\n?', code):
        if f.mod is None: continue
        old = f.mod + (m.group(2),)
        if f.mod == () or old not in INFO: continue
        new = newmod(old)
        start = m.start()
        if new[:-1] != me or f.mod in ROOTS: edits.append((start, m.end(), ''))
        elif new[-1] != old[-1]: edits.append((m.start(2), m.end(2), new[-1]))
    # doc comments
    for m in re.finditer(r'(?m)//[/!]?[^\n]*', text):
        if code[m.start():m.start() + 2].strip(): continue
        for q in re.finditer(r'(?<![\w:])(crate|super)((?:::\w+)+)', m.group(0)):
            segs = q.group(0).split('::')
            ab = f.absolute(segs, m.start())
            if ab is None or '<inner>' in ab: continue
            new = map_abs(ab)
            out = '::'.join(f.render(segs[0], new, m.start(), me))
            if out != q.group(0): edits.append((m.start() + q.start(), m.start() + q.end(), out))
    if test_uses:
        for a, b, _ in f.inner:
            m = re.compile(r'use super::\*;').search(code, a, b)
            if m and keep(m.start()):
                edits = [e for e in edits if e[0] != m.start() - len(re.search(r'[ \t]*$', text[:m.start()]).group(0))]
                edits.append((m.start(), m.end(), 'use super::*;\n' + '\n'.join(test_uses)))
    if keep is None:
        out, at = [], 0
        for a, b, r in sorted(edits):
            if a < at: continue
            out.append(text[at:a]); out.append(r); at = b
        return ''.join(out) + text[at:]
    out, at = [], 0
    def put(a, b):
        i = a
        while i < b:
            k = keep(i); j = i
            while j < b and keep(j) == k: j += 1
            if k: out.append(text[i:j])
            i = j
    for a, b, r in sorted(edits):
        if a < at: continue
        put(at, a)
        if keep(a): out.append(r)
        at = b
    put(at, len(text))
    return ''.join(out)

def block_end(code, j):
    d = 0
    while True:
        if code[j] == '{': d += 1
        if code[j] == '}':
            d -= 1
            if d == 0: return j + 1
        j += 1

def chunks(f):
    """Top-level items: (start, end, kind, name); start includes docs and attributes."""
    code, text = f.code, f.text
    out, i, n = [], 0, len(code)
    start = 0
    while i < n:
        m = re.compile(r'\s*').match(code, i); i = m.end()
        if i >= n: break
        # attributes
        if code.startswith('#', i):
            d = 0
            while True:
                c = code[i]
                if c == '[': d += 1
                if c == ']':
                    d -= 1
                    if d == 0: i += 1; break
                i += 1
            continue
        m = re.compile(r'(thread_local)\s*!').match(code, i)
        if m:
            j = block_end(code, m.end())
            if j < n and text[j] == '\n': j += 1
            out.append((start, j, 'macro', '?')); start = j; i = j
            continue
        m = re.compile(r'(?:pub(?:\s*\([^)]*\))?\s+)?(?:async\s+|unsafe\s+|default\s+)*(use|mod|struct|enum|trait|type|fn|const(?:\s+fn)?|static|impl|union|macro_rules!)').match(code, i)
        if not m: raise ValueError('%s: item at %r' % (f.path, text[i:i+80]))
        kind = m.group(1)
        rest = code[m.end():]
        if kind == 'impl':
            j = m.end(); d = 0
            h = code[m.end():code.index('{', m.end())]
            h = re.sub(r'\bwhere\b.*', '', h, flags=re.S)
            # strip generics after impl
            if h.lstrip().startswith('<'):
                k = h.index('<'); d = 0
                while True:
                    if h[k] == '<': d += 1
                    if h[k] == '>':
                        d -= 1
                        if d == 0: break
                    k += 1
                h = h[k + 1:]
            t = h.split(' for ')[-1] if ' for ' in h else h
            q = re.findall(r"(?<!')\b[A-Za-z_]\w*", t.split('<')[0])
            name = q[-1] if q else '?'
            if ' for ' in h and name in ('Arc', 'Box'):
                name = 'impl:' + re.findall(r'\w+', h.split(' for ')[0].split('<')[0])[-1]
        else:
            q = re.match(r'\s*(\w+)', rest); name = q.group(1) if q else '?'
        # end: `;` or `{...}` at depth 0
        j, d = m.end(), 0
        while True:
            c = code[j]
            if c in '([{': d += 1
            if c in ')]}':
                d -= 1
                if d == 0 and c == '}' and kind not in ('use', 'const', 'static', 'type'): j += 1; break
            if c == ';' and d == 0: j += 1; break
            j += 1
        while j < n and text[j] in ' \t': j += 1
        if j < n and text.startswith('//', j):
            j = text.index('\n', j)
        if j < n and text[j] == '\n': j += 1
        out.append((start, j, kind, name)); start = j; i = j
    return out

def imported_names(code):
    out = set()
    for m in USE.finditer(code):
        for p, a in parse_tree(code, m.end())[0]:
            name = a or (p[-1] if p[-1] != 'self' else p[-2])
            if name[0].isupper() or len(p) > 1 and not is_any_module(p): out.add(name)
    return out

def is_any_module(p):
    return p[-1] == 'self' or (p[-1].islower() and any(m[-1:] == (p[-1],) for m in list(INFO) + list(MOVES.values()) + list(ROOTS)))

def without_imports(text, names):
    """Drops from the use statements what is imported already."""
    code = mask(text); out, at = [], 0
    for m in USE.finditer(code):
        if m.group(1): continue
        leaves, end = parse_tree(code, m.end())
        keep = [(list(p), a) for p, a in leaves if (a or (p[-1] if p[-1] != 'self' else p[-2])) not in names]
        out.append(text[at:m.start()]); at = end
        for t in tree_text(keep): out.append('%suse %s;\n' % (m.group(2), t))
    return ''.join(out) + text[at:]

def module_doc(text):
    m = re.match(r'(?:(?://!)[^\n]*\n)+', text)
    return m.group(0) if m else ''

def main():
    written = {}
    pieces_of = collections.defaultdict(list)
    raised = collections.defaultdict(set)
    # src
    old = {}
    for mod, i in sorted(INFO.items()):
        if mod == (): continue
        path = os.path.join(SRC, i['rel'])
        f = File(path, mod, open(path).read())
        old[mod] = f
    for mod, f in old.items():
        if mod not in SPLITS:
            me = content_mod(mod)
            pieces_of[me].append((mod, rewrite(f, me)))
            continue
        pieces = collections.OrderedDict()
        default = content_mod(mod)
        doc = module_doc(f.text)
        owner = [None] * (len(f.text) + 1)
        names = collections.defaultdict(set)
        for a, b, kind, name in chunks(f):
            to = default
            if kind in ('use', 'mod') and not (kind == 'mod' and '{' in f.code[a:b]): to = '*'
            else:
                to = SPLITS[mod].get(name) or default
                if kind not in ('impl', 'mod', 'macro') and name != '?': names[to].add(name)
            if a == 0 and doc:
                for k in range(0, len(doc)): owner[k] = default
                a = len(doc)
            for k in range(a, b): owner[k] = to
        targets = [default] + sorted(set(SPLITS[mod].values()) - {default})
        for t in targets:
            body = rewrite(f, t, keep=lambda i, t=t: owner[i] in (t, '*'))
            mine = mask(body)
            inner = graph.inner_mods(mine)
            imported = imported_names(mine)
            outer = ''.join(c if not any(a < k < b for a, b, _ in inner) else ' ' for k, c in enumerate(mine))
            need = collections.defaultdict(list)
            test_need = []
            for o in targets:
                if o == t: continue
                for nme in sorted(names[o]):
                    here = r'(?<![\w.:])%s\b' % re.escape(nme)
                    if nme[0].islower(): here = r'(?<![\w.:])(?<!fn )%s\s*\(|[(,=]\s*%s\s*[),]' % (nme, nme)
                    if nme in imported or (t, nme) in DROPS: continue
                    if re.search(here, mine): raised[o].add(nme)
                    if re.search(here, outer): need[o].append(nme)
                    elif re.search(here, mine): test_need.append('use crate::%s::%s;' % ('::'.join(o), nme))
            imp = ''
            for o, ns in need.items():
                if o[:-1] == t[:-1]: imp += 'use super::%s::{%s};\n' % (o[-1], ', '.join(ns))
                elif o[:-1] == t: imp += 'use self::%s::{%s};\n' % (o[-1], ', '.join(ns))
                elif o == t[:-1]: imp += 'use super::{%s};\n' % ', '.join(ns)
                else: imp += 'use crate::%s::{%s};\n' % ('::'.join(o), ', '.join(ns))
            if test_need:
                k = body.index('use super::*;') + len('use super::*;')
                body = body[:k] + '\n' + '\n'.join(test_need) + body[k:]
            d = module_doc(body)
            body = d + '\n' + imp + '\n' + body[len(d):].lstrip('\n') if imp else body
            pieces_of[t].append((mod if t == default else None, re.sub(r'\n{3,}', '\n\n', body)))
        # items that other pieces or siblings name have to be visible to them
        f.split_names = names
    for t, bodies in pieces_of.items():
        bodies.sort(key=lambda b: b[0] is None)
        text = bodies[0][1]
        for _, more in bodies[1:]:
            have = set()
            for m in USE.finditer(mask(text)):
                for p, a in parse_tree(mask(text), m.end())[0]: have.add(a or (p[-1] if p[-1] != 'self' else p[-2]))
            more = without_imports(more, have)
            text = text.rstrip('\n') + '\n\n' + more[len(module_doc(more)):].lstrip('\n')
        written[t] = (bodies[0][0], text)
    # items that others name now
    for mod in SPLITS:
        for item, to in SPLITS[mod].items(): raised[to].add(item)
    for t, names in raised.items():
        text = written[t][1]
        for nme in names:
            # what left its folder is for everybody
            far = not any(t[:-1] in (content_mod(m)[:-1], content_mod(m)) for m in SPLITS if SPLITS[m].get(nme) == t or content_mod(m) == t)
            vis = 'pub' if far else 'pub(super)'
            text = re.sub(r'(?m)^((?:async |const |unsafe )*(?:struct|enum|trait|type|fn|const|static) %s\b)' % nme, vis + r' \1', text)
        written[t] = (written[t][0], text)
    # what a piece shows to the files around it
    origin = {}
    for mod in SPLITS:
        for to in set(SPLITS[mod].values()) | {content_mod(mod)}: origin.setdefault(to, mod)
    def moved_here(t):
        out = set()
        for m in SPLITS:
            for item, to in SPLITS[m].items():
                if to == t: out.add(item)
            if content_mod(m) == t and m in ROOTS: out |= INFO[m]['defs']
        return out
    for t, mod in origin.items():
        seen = newmod(mod[:-1]) if mod[:-1] else ()
        text = written[t][1]
        if seen and t[:-1] != seen and written[t][0] is None:
            text = text.replace('pub(super)', 'pub(in crate::%s)' % '::'.join(seen)) if mod not in ROOTS else text
            written[t] = (written[t][0], text)
        around = ''.join(mask(x[1]) for o, x in written.items() if o != t and o[:len(t) - 1] == t[:-1])
        code = mask(text)
        inner_ = graph.inner_mods(code)
        edits = []
        for m in re.finditer(r'(?m)^(impl\b[^{;]*|(?:pub(?:\([^)]*\))? )?struct \w+[^{;(]*)\{', code):
            if ' for ' in m.group(1): continue
            owner_ = re.findall(r'\w+', re.sub(r'<[^<>]*>', '', re.sub(r'<[^<>]*>', '', m.group(1))))[-1]
            if owner_ not in moved_here(t): continue
            end = block_end(code, m.end() - 1)
            if m.group(1).startswith('impl'): pat = r'(?m)^    ((?:async |const )*fn (\w+)|const (\w+))'
            else: pat = r'(?m)^    ((\w+):)'
            for q in re.compile(pat).finditer(code, m.end(), end):
                nme = [g for g in q.groups()[1:] if g][0]
                if re.search(r'[.:]\s*%s\b' % nme, around) or (not m.group(1).startswith('impl') and re.search(r'[{,]\s*%s\b' % nme, around)):
                    edits.append(q.start(1))
        for m in re.finditer(r'(?m)^(?:async |const )*(?:struct|enum|trait|type|fn|const|static) (\w+)', code):
            if m.group(1) in moved_here(t) and re.search(r'(?:use [^;]*|::\s*)\b%s\b' % m.group(1), around): edits.append(m.start())
        for m in re.finditer(r'(?m)^(?:pub(?:\([^)]*\))? )?struct \w+\(', code):
            if not code.startswith('pub', m.end()): edits.append(m.end())
        for at in sorted(edits, reverse=True): text = text[:at] + 'pub(super) ' + text[at:]
        written[t] = (written[t][0], text)
    # new children of files
    for t in list(written):
        par = t[:-1]
        if par in written and written[t][0] is None:
            text = written[par][1]
            m = re.search(r'(?m)^(?:pub(?:\([^)]*\))? )?mod \w+;\n', text)
            line = 'pub mod %s;\n' % t[-1]
            if m: text = text[:m.start()] + line + text[m.start():]
            else:
                ms = list(USE.finditer(mask(text)))
                k = parse_tree(mask(text), ms[-1].end())[1] if ms and False else None
                d = len(module_doc(text))
                text = text[:d] + '\n' + line + text[d:]
            written[par] = (written[par][0], text)
    def rel(mod): return 'src/' + '/'.join(mod) + '.rs'
    moves = []
    for me, (mod, text) in written.items():
        if mod is not None:
            a, b = 'src/' + INFO[mod]['rel'], rel(me)
            if a != b: moves.append((a, b))
    git = lambda *a: subprocess.run(['git', '-C', ROOT] + list(a), check=True)
    # two steps, for names may swap
    for k, (a, b) in enumerate(moves):
        os.makedirs(os.path.join(ROOT, 'src/.moving'), exist_ok=True)
        git('mv', a, 'src/.moving/%d' % k)
    for k, (a, b) in enumerate(moves):
        os.makedirs(os.path.dirname(os.path.join(ROOT, b)), exist_ok=True)
        git('mv', 'src/.moving/%d' % k, b)
    # files that are no Rust beside their module
    from layout_table import OTHERS
    for a, b in OTHERS:
        if os.path.exists(os.path.join(ROOT, a)):
            os.makedirs(os.path.dirname(os.path.join(ROOT, b)), exist_ok=True)
            git('mv', a, b)
    for me, (mod, text) in written.items():
        open(os.path.join(ROOT, rel(me)), 'w').write(text)
    # everything around
    outside = ['src/main.rs', 'build.rs']
    for top in ('tests', 'benches', 'fuzz'):
        for d, ds, fs in os.walk(os.path.join(ROOT, top)):
            ds[:] = [x for x in ds if x != 'target']
            for n in fs:
                if n.endswith('.rs'): outside.append(os.path.relpath(os.path.join(d, n), ROOT))
    for rel_ in outside:
        p = os.path.join(ROOT, rel_)
        t = open(p).read()
        if 'tollgate' not in t: continue
        f = File(p, None, t)
        n = rewrite(f, ())
        if n != t: open(p, 'w').write(n)
    for d, ds, fs in os.walk(SRC, topdown=False):
        if not os.listdir(d): os.rmdir(d)

main()
