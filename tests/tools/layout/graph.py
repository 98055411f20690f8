"""Imports between the files of src/: edges, circles, levels."""
import sys, os, re, collections
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from rs import *
ITEM = re.compile(r'(?m)^(?:pub(?:\s*\([^)]*\))?\s+)?(?:async\s+|const\s+|unsafe\s+|extern\s+"\w*"\s+)*(?:struct|enum|trait|type|fn|const|static|union|macro_rules!)\s+(\w+)')
def load(src):
    info = {}
    for rel in files(src):
        if rel == 'main.rs': continue
        text = open(os.path.join(src, rel)).read(); code = mask(text)
        defs = set(ITEM.findall(code)); mods = set(re.findall(r'(?m)^(?:pub(?:\s*\([^)]*\))?\s+)?mod\s+(\w+)\s*[;{]', code))
        uses, spans = [], []
        for m in USE.finditer(code):
            leaves, end = parse_tree(code, m.end())
            spans.append((m.start(), end))
            # depth: inner module? (test modules)
            for p, a in leaves: uses.append((p, a, bool(m.group(2)), m.start(), m.group(1)))
        inline = []
        for m in PATH.finditer(code):
            if any(a <= m.start() < b for a, b in spans) or code[:m.start()].endswith('in '): continue
            inline.append((tuple(re.sub(r'\s', '', m.group(0)).split('::')), m.start(), m.group(0)))
        # relative: child::Name inline
        for mod in mods:
            for m in re.finditer(r'(?<![\w:])%s::(\w+)' % mod, code):
                if any(a <= m.start() < b for a, b in spans): continue
                inline.append((('self', mod, m.group(1)), m.start(), m.group(0)))
        info[mod_of(rel)] = dict(rel=rel, defs=defs, mods=mods, uses=uses, inline=inline, code=code, inner=inner_mods(code))
    return info
def inner_mods(code):
    out = []
    for m in re.finditer(r'(?m)^[ \t]*(?:pub(?:\s*\([^)]*\))?\s+)?mod\s+(\w+)\s*\{', code):
        d, j = 1, m.end()
        while d: 
            d += {'{': 1, '}': -1}.get(code[j], 0); j += 1
        out.append((m.start(), j, m.group(1)))
    return out
def absolute(info, mod, path, pos):
    depth = sum(1 for a, b, _ in info[mod]['inner'] if a < pos < b)
    p = list(path)
    if p[0] in ('crate', 'tollgate'): return tuple(p[1:])
    cur = list(mod) + ['<inner>'] * depth
    if p[0] == 'self': p = p[1:]; return tuple([x for x in cur if x != '<inner>'] + p) if not depth else tuple(cur + p)
    if p[0] == 'super':
        while p and p[0] == 'super': cur = cur[:-1]; p = p[1:]
        return tuple(cur + p)
    if p[0] in info[mod]['mods'] and not depth: return tuple(cur + p)
    return None
def target(info, path, seen=()):
    """File (module) that defines the item at this absolute path."""
    mod = ()
    for k in range(len(path), -1, -1):
        if path[:k] in info: mod = path[:k]; break
    rest = [r for r in path[len(mod):] if r != '<inner>']
    if '<inner>' in path: return mod
    if not rest or rest[0] == '*': return mod
    name = rest[0]
    if name in info[mod]['defs']: return mod
    for p, a, pub, pos, ind in info[mod]['uses']:
        if (a or p[-1]) == name and p[-1] != 'self':
            ab = absolute(info, mod, p, pos)
            if ab and ab not in seen and ab != path: return target(info, ab, seen + (path,))
    return mod
def edges(info, tests=True):
    out = collections.defaultdict(set)
    for mod, i in info.items():
        for p, a, pub, pos, ind in i['uses']:
            if pub: continue
            if not tests and (mod[-1:] == ('tests',) or any(a < pos < b for a, b, _ in i['inner'])): continue
            ab = absolute(info, mod, p, pos)
            if ab is not None:
                if ab and ab[-1] == 'self': ab = ab[:-1]
                t = target(info, ab)
                if t != mod: out[mod].add((t, ab))
        for p, pos, s in i['inline']:
            if not tests and (mod[-1:] == ('tests',) or any(a < pos < b for a, b, _ in i['inner'])): continue
            ab = absolute(info, mod, p, pos)
            if ab is not None:
                t = target(info, ab)
                if t != mod: out[mod].add((t, ab))
    return out
POSTPUB = False
def sccs(g):
    idx, low, st, on, out, c = {}, {}, [], set(), [], [0]
    sys.setrecursionlimit(10000)
    def go(v):
        idx[v] = low[v] = c[0]; c[0] += 1; st.append(v); on.add(v)
        for w in g.get(v, ()):
            if w not in idx: go(w); low[v] = min(low[v], low[w])
            elif w in on: low[v] = min(low[v], idx[w])
        if low[v] == idx[v]:
            s = []
            while True:
                w = st.pop(); on.discard(w); s.append(w)
                if w == v: break
            out.append(s)
    for v in g:
        if v not in idx: go(v)
    return out
if __name__ == '__main__':
    info = load(sys.argv[1]); e = edges(info, 'tests' in sys.argv)
    g = {m: {t for t, _ in e[m]} for m in info}
    for s in sccs(g):
        if len(s) > 1:
            print('CIRCLE', ['::'.join(x) for x in s])
            for m in s:
                for t, ab in e[m]:
                    if t in s: print('   ', '::'.join(m), '->', '::'.join(t), 'by', '::'.join(ab))
    if 'all' in sys.argv:
        for m in sorted(g):
            print('::'.join(m), ':', ' '.join(sorted('::'.join(t) for t in g[m])))
