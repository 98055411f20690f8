"""Small Rust reader: masks comments and strings, finds modules, use trees and paths."""
import os, re

def mask(text):
    """Returns (code, kinds): code = text with comments/strings blanked by spaces (same length)."""
    out = list(text)
    i, n = 0, len(text)
    def blank(a, b):
        for k in range(a, b):
            if out[k] != '\n':
                out[k] = ' '
    while i < n:
        c = text[i]
        if text.startswith('//', i):
            j = text.find('\n', i)
            j = n if j < 0 else j
            blank(i, j); i = j
        elif text.startswith('/*', i):
            d, j = 1, i + 2
            while j < n and d:
                if text.startswith('/*', j): d += 1; j += 2
                elif text.startswith('*/', j): d -= 1; j += 2
                else: j += 1
            blank(i, j); i = j
        elif c == '"' or (c in 'bc' and i + 1 < n and text[i+1] == '"' and not (i and (text[i-1].isalnum() or text[i-1] == '_'))):
            j = i + (1 if c == '"' else 2)
            while j < n and text[j] != '"':
                j += 2 if text[j] == '\\' else 1
            blank(i, j + 1); i = j + 1
        elif c in 'rb' and re.match(r'b?r#*"', text[i:i+40]) and not (i and (text[i-1].isalnum() or text[i-1] == '_')):
            m = re.match(r'b?r(#*)"', text[i:])
            end = '"' + m.group(1)
            j = text.find(end, i + m.end())
            j = n if j < 0 else j + len(end)
            blank(i, j); i = j
        elif c == "'":
            m = re.match(r"'(\\x[0-9a-fA-F]{2}|\\u\{[^}]*\}|\\.|[^\\'\n])'", text[i:i+16])
            if m:
                blank(i, i + m.end()); i += m.end()
            else:
                i += 1
        else:
            i += 1
    return ''.join(out)

def parse_tree(s, i):
    """Parses a use tree at s[i]; returns (list of (path tuple, alias or None)), next i."""
    leaves = []
    def ws(i):
        while i < len(s) and s[i].isspace(): i += 1
        return i
    def tree(i, prefix):
        i = ws(i)
        if s.startswith('::', i): i = ws(i + 2); prefix = prefix + ['']
        path = list(prefix)
        while True:
            i = ws(i)
            if s[i] == '{':
                i += 1
                while True:
                    i = ws(i)
                    if s[i] == '}': return i + 1
                    i = tree(i, path)
                    i = ws(i)
                    if s[i] == ',': i += 1
            elif s[i] == '*':
                leaves.append((tuple(path + ['*']), None)); return i + 1
            else:
                m = re.match(r'(r#)?[A-Za-z_]\w*', s[i:])
                if not m: raise ValueError('use tree: %r' % s[i:i+60])
                path.append(m.group(0)); i = ws(i + m.end())
                if s.startswith('::', i): i += 2; continue
                alias = None
                m = re.match(r'as\s+(\w+)', s[i:])
                if m: alias = m.group(1); i += m.end()
                leaves.append((tuple(path), alias)); return i
    j = tree(i, [])
    j = ws(j)
    assert s[j] == ';', s[i:j+20]
    return leaves, j + 1

USE = re.compile(r'(?m)^([ \t]*)((?:pub(?:\s*\([^)]*\))?\s+)?)use\s+')
PATH = re.compile(r'(?<![\w:$])(?:(?:crate|super|self|tollgate)(?:\s*::\s*(?:r#)?\w+)+)')

def mod_of(rel):
    """Module path (tuple) of a file relative to src/."""
    parts = rel[:-3].split('/')
    if parts[-1] in ('mod', 'lib', 'main'): parts = parts[:-1]
    return tuple(parts)

def files(root):
    out = []
    for d, _, fs in os.walk(root):
        for f in fs:
            if f.endswith('.rs'): out.append(os.path.relpath(os.path.join(d, f), root))
    return sorted(out)
