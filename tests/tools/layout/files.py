#!/usr/bin/env python3
"""What is no code: documents, tools, settings of the build, headers of files, long lines, the tidy test."""
import os, re, shutil, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
HERE = os.path.dirname(os.path.abspath(__file__))
from layout_table import MOVES, ROOTS
ROOT = sys.argv[1]
def path(f): return os.path.join(ROOT, f)
def read(f): return open(path(f)).read()
def write(f, t):
    os.makedirs(os.path.dirname(path(f)) or '.', exist_ok=True)
    open(path(f), 'w').write(t)
def sub(f, pat, rep, flags=re.M, must=True, count=0):
    t = read(f); n, k = re.subn(pat, rep, t, count=count, flags=flags)
    if not k and must: print('files: %s: no match for %s' % (f, pat), file=sys.stderr)
    write(f, n)

# --- names of files ---------------------------------------------------------------------------------------------------
NAMES = {}
for a, b in MOVES.items(): NAMES['/'.join(a)] = '/'.join(b)
SPECIAL = {'config': 'config/files', 'store': 'store/contract', 'store/redis': 'store/redis/store', 'server': 'server/run', 'settings': 'settings/serve'}
def new_name(old):
    """src/-relative path of an old file, without its ending."""
    if old in SPECIAL: return SPECIAL[old]
    parts = old.split('/')
    for k in range(len(parts), 0, -1):
        if '/'.join(parts[:k]) in NAMES: return '/'.join([NAMES['/'.join(parts[:k])]] + parts[k:])
    return old
# every old file, as seen in the commit that is converted
import subprocess
old_files = subprocess.run(['git', '-C', ROOT, 'ls-tree', '-r', '--name-only', 'HEAD', 'src'], capture_output=True, text=True).stdout.split()
rust = {f[4:-3] for f in old_files if f.endswith('.rs')} - {'lib', 'main'}
FULL = {f: new_name(f) for f in rust}
FULL['metrics/mapping'] = 'observe/metrics/mapping'
docs = [f for f in ('README.md', 'ARCHITECTURE.md', 'CONTRIBUTING.md', 'CHANGELOG.md', 'clippy.toml', 'Cargo.toml', 'Makefile', 'deny.toml') if os.path.exists(path(f))]
docs.append('tests/tools/mutants')
for top in ('docs', 'src', 'tests', 'benches', 'fuzz', 'config', 'deploy', '.ci'):
    for d, ds, fs in os.walk(path(top)):
        ds[:] = [x for x in ds if x not in ('target', 'golden', 'node_modules')]
        for n in fs:
            if n.endswith(('.rs', '.md', '.toml', '.yaml', '.lua', '.py', '.js')): docs.append(os.path.relpath(os.path.join(d, n), ROOT))
# short names, as `grpc.rs` or `store/redis/lane.rs`, where one file alone can be meant
short = {}
for f in FULL:
    parts = f.split('/')
    for k in range(len(parts)): short.setdefault('/'.join(parts[k:]), set()).add(f)
for f in sorted(set(docs)):
    if f in ('src/lib.rs', 'tests/tidy.rs'): continue
    t = read(f); u = t
    u = re.sub(r'(?<![\w/.])src/([\w/]+)\.(rs|yaml)\b', lambda m: 'src/%s.%s' % (FULL.get(m.group(1), m.group(1)), m.group(2)), u)
    if f.endswith(('.md', '.toml')) or f.startswith('src/') or f.startswith('tests/'):
        def one(m):
            name = m.group(1)
            if name in ('main', 'lib', 'build') or name.startswith(('src/', 'tests/', 'benches/')): return m.group(0)
            found = short.get(name, set())
            if not found: return m.group(0)
            top = [x for x in found if x == name]
            pick = top[0] if top else (sorted(found)[0] if len(found) == 1 else None)
            if pick is None:
                # the one beside the file that speaks of it
                return m.group(0)
            new = FULL[pick]
            # as short as it was, if that is enough
            out = new if '/' in name or new.split('/')[-1] != name.split('/')[-1] or top else new.split('/')[-1]
            if top and '/' not in name: out = new
            return '`%s.rs`' % out
        if f != 'ARCHITECTURE.md': u = re.sub(r'`([\w/]+)\.rs`', one, u)
    if u != t: write(f, u)

for f in ('CONTRIBUTING.md', 'ARCHITECTURE.md', 'README.md'):
    t = read(f); u = t
    u = re.sub(r'`src/config/files\.rs`(: a `Fault`|, `Fault`| that list)', r'`src/config/fault.rs`\1', u)
    u = re.sub(r'texts in `src/config/files\.rs`', 'texts in `src/config/fault.rs`', u)
    u = u.replace('`AnyStore` and of `Backend` in `src/server/run.rs`', '`AnyStore` (`src/store/any.rs`) and of `StoreBackend` (`src/server/backend.rs`)')
    u = u.replace('a `Method`,', 'a `CounterKind`,').replace('`Method`, and a letter', '`CounterKind`, and a letter')
    if u != t: write(f, u)

# long names of tests that documents point to
renamed = {}
for line in open(os.path.join(HERE, 'words.txt')):
    parts = line.split('#')[0].split()
    if len(parts) == 3 and parts[1].count('_') > 3: renamed[parts[1]] = parts[2]
for f in docs:
    if f.endswith('.md'):
        t = read(f); u = t
        for a, b in renamed.items(): u = re.sub(r'\b%s\b' % a, b, u)
        if u != t: write(f, u)

# --- headers of new files ---------------------------------------------------------------------------------------------
HEADERS = {
    'src/config/fault.rs': 'All that can be wrong with rules, and the texts that say so.',
    'src/config/file.rs': 'A rule file in memory, and the positions in it.',
    'src/config/options.rs': 'How rules are read.',
    'src/config/source.rs': 'Where rule files are found.',
    'src/control/xds/error.rs': 'Why rules cannot come from a control plane.',
    'src/foundation/lock.rs': 'Locks that a panic elsewhere does not poison.',
    'src/server/backend.rs': 'The store that the settings choose, for all workers and for each of them.',
    'src/server/error.rs': 'Why the server did not start, or ended.',
    'src/server/health.rs': 'Publishes health over HTTP and gRPC.',
    'src/server/rules.rs': 'Loads the rules from where the settings say, and follows their changes.',
    'src/server/runtime.rs': 'The runtime of the main thread and of each worker.',
    'src/server/services.rs': 'The services of one thread: decisions, spans, reflection.',
    'src/server/signals.rs': 'Signals that ask the process to stop.',
    'src/server/statistics.rs': 'How statistics are shown to Prometheus.',
    'src/settings/serve.rs': 'The settings of `serve`.',
    'src/store/any.rs': 'The store that the settings chose, as one type.',
    'src/store/memory/slot.rs': 'One counter in memory: a number, or the state of an algorithm.',
    'src/store/redis/batchers.rs': 'The queues of one worker and the batchers that serve them.',
    'src/store/redis/options.rs': 'How the store talks to Redis.',
    'src/store/redis/servers.rs': 'The servers behind one address, as all workers know them.',
    'src/store/redis/stats.rs': 'Counts of pipelines, connections and nodes, over the batchers of all workers.',
    'src/store/replicas/number.rs': 'How many replicas share the limits, as far as that is known.',
    'src/cli/lint_envoy/unreadable.rs': 'Why nothing can be said about a file.',
}
for f, text in HEADERS.items():
    t = read(f)
    if not t.startswith('//!'): write(f, '//! %s\n\n%s' % (text, t.lstrip('\n')))

# --- the tidy test ----------------------------------------------------------------------------------------------------
shutil.copy(os.path.join(HERE, 'new/tests/tidy.rs'), path('tests/tidy.rs'))

t = read('config/full.yaml')
if not re.search(r'\bmonth:', t):
    m = re.search(r'(?m)^( *- \{ unit: month, [^\n]*starts:[^\n]*\n)', t)
    if m:
        indent = re.match(r' *', m.group(1)).group(0)
        t = t[:m.end()] + indent + '- { unit: year, requests_per_unit: 90000, calendar: true, time_zone: Europe/Madrid, starts: { month: 4 } }\n' + t[m.end():]
        t = t.replace(' `starts` also has `month`, for years.', ' `month` is for years.')
        write('config/full.yaml', t)

# --- words in comments that the renames left ------------------------------------------------------------------------------
from rs import mask
LEFT = {'voice': 'enforcement', 'voices': 'enforcements', 'lane': 'queue', 'lanes': 'queues', 'seat': 'slot', 'seats': 'slots', 'trouble': 'failure',
        'verdict': 'charging', 'guide': 'topology watcher', 'meters': 'stats', 'Lane': 'NodeQueue'}
for d, ds, fs in os.walk(path('src')):
    for n in fs:
        if not n.endswith('.rs'): continue
        f = os.path.relpath(os.path.join(d, n), ROOT); t = read(f); code = mask(t)
        out, at = [], 0
        for m in re.finditer(r'\b(%s)\b' % '|'.join(LEFT), t):
            line = t[t.rfind('\n', 0, m.start()) + 1:m.start()]
            if code[m.start()] == ' ' and re.match(r'\s*//', line): out += [t[at:m.start()], LEFT[m.group(1)]]; at = m.end()
        if out: write(f, ''.join(out) + t[at:])

# --- tools ------------------------------------------------------------------------------------------------------------
t = read('tests/tools/mutants')
t = re.sub(r"sed '/\^\\/\\/ 2: \w+\$/,\$d' src/lib\.rs", r"sed '/^\\/\\/ 2: /,$d' src/lib.rs", t)
t = re.sub(r"sed -n 's/\^pub mod .*?\ndone\n", 'cp -r src/foundation src/core "$core/src/"\n', t, flags=re.S)
t = t.replace('Everything up to the third floor.', 'The two lowest floors.').replace('(floors 0 and 1 of ARCHITECTURE.md)', '(`src/foundation/` and `src/core/`)')
write('tests/tools/mutants', t)
sub('clippy.toml', r'"time is passed in; [^"]*"', '"time is passed in; `service/grpc.rs` reads it"', must=False)
t = read('Cargo.toml')
if '[profile.local]' not in t:
    k = t.index('# Integration tests start the server under load')
    t = t[:k] + '''# `make run`: built in half the time, a little slower than what is released.
[profile.local]
inherits = "release"
lto = false
codegen-units = 16
opt-level = 2

''' + t[k:]
if 'name = "tidy"' not in t:
    k = t.index('[[test]]\nname = "it"')
    t = t[:k] + '''# Floors, circles, libraries, words and columns of src/: without a tool, in a second.
[[test]]
name = "tidy"
path = "tests/tidy.rs"

''' + t[k:]
write('Cargo.toml', t)
t = read('Makefile')
t = re.sub(r'(?m)^(\.PHONY:.*?)\brun test\b', r'\1run unit test', t)
t = re.sub(r'(?m)^\t\$\(CARGO\) run --release --locked -- serve --config-dir config', '\t$(CARGO) run --profile local --locked -- serve --config-dir config', t)
if '\nunit:' not in t:
    k = t.index('\ntest: tools lint')
    t = t[:k] + '''
unit: ## The unit tests and the layout of src/, without any tool: seconds, once it is built
	$(CARGO) test --locked --lib --test tidy
''' + t[k:]
write('Makefile', t)
t = read('CONTRIBUTING.md')
if '`make unit`' not in t:
    m = re.search(r'(?m)^\|[- |]+\|\n', t)
    if m: t = t[:m.end()] + '| `make unit` | the unit tests, and the layout of `src/` (`tests/tidy.rs`): needs no tool, takes seconds once it is built |\n' + t[m.end():]
    else: print('files: CONTRIBUTING.md has no table', file=sys.stderr)
write('CONTRIBUTING.md', t)

# --- ARCHITECTURE.md --------------------------------------------------------------------------------------------------
t = read('ARCHITECTURE.md')
u = open(os.path.join(HERE, 'new/floors.md')).read()
a, b = t.index('## The floors'), t.index('## What is never there')
t = t[:a] + u + '\n' + t[b:]
for pat, rep in [
    (r'`src/config/files\.rs`, `Fault`', '`src/config/fault.rs`, `Fault`'),
]: t = re.sub(pat, rep, t)
def arch(m):
    name = m.group(1)
    if name in FULL and name in rust and not os.path.exists(path('src/%s.rs' % name)): return '`%s.rs`' % FULL[name]
    # beside the file named before, as `pipeline.rs` in a line on store/redis
    for folder in ('store/redis', 'store', 'config', 'server', 'metrics', 'xds', 'grpc'):
        full = '%s/%s' % (folder, name)
        if full in FULL and '/' not in name and name not in FULL: return '`%s.rs`' % FULL[full].split('/')[-1]
    return m.group(0)
head, floors, tail = t.partition('## The floors')
keep, sep, never = tail.partition('## What is never there')
fix = lambda x: re.sub(r'`(?!src/)([\w/]+)\.rs`', arch, x)
t = fix(head) + floors + keep + sep + fix(never)
for a, b in [('Lane::push', 'NodeQueue::push'), ('Lane::watch_time', 'NodeQueue::watch_time'), ('`Verdict::charges`', '`Charging::charges`'),
             ('`Standing::order`', '`LimitStanding::order`'), ('`Ran`', '`RunningTime`'), ('`Node::parse`', '`YamlNode::parse`'),
             ('inside `Batchers` or `Guide`', 'inside `Batchers` or `TopologyWatcher`'), ('below floor 4', 'below `service/`'), ('on floors 0 and 1', 'in `foundation/` and `core/`')]:
    t = t.replace(a, b)
write('ARCHITECTURE.md', t)

# --- lines that rustfmt leaves wide -------------------------------------------------------------------------------------
def split_args(text):
    """Splits at commas outside of brackets and texts."""
    out, depth, at, quote = [], 0, 0, False
    for i, c in enumerate(text):
        if quote:
            if c == '"' and text[i - 1] != '\\': quote = False
            continue
        if c == '"': quote = True
        elif c in '([{': depth += 1
        elif c in ')]}': depth -= 1
        elif c == ',' and depth == 0: out.append(text[at:i].strip()); at = i + 1
    rest = text[at:].strip()
    if rest: out.append(rest)
    return out
def wrap(line):
    if len(line) <= 120: return line
    indent = re.match(r' *', line).group(0)
    m = re.fullmatch(r'( *)#\[arg\((.*)\)\]', line)
    if m: return '%s#[arg(\n%s\n%s)]' % (indent, '\n'.join('%s    %s,' % (indent, a) for a in split_args(m.group(2))), indent)
    m = re.fullmatch(r'( *//[/!]? )(.*)', line)
    if m and '──' not in line:
        out, cur = [], m.group(1)
        for word in m.group(2).split(' '):
            if len(cur) + len(word) > 116 and cur.strip() not in ('//', '///', '//!'): out.append(cur.rstrip()); cur = m.group(1)
            cur += word + ' '
        return '\n'.join(out + [cur.rstrip()])
    # one text, cut behind spaces
    m = re.fullmatch(r'( *(?:[^"\\]|\\.)*")((?:[^"\\]|\\.)*)(".*)', line)
    if m and ' ' in m.group(2) and not re.search(r'\br#*"$', m.group(1)) and not m.group(1).lstrip().startswith('//'):
        inner = indent + '     '
        lines, cur = [], m.group(1)
        for word in re.findall(r'[^ ]* ?', m.group(2)):
            if not word: continue
            if len(cur) + len(word) + 1 > 112 and cur.strip() and not cur.endswith('"') :
                lines.append(cur + '\\'); cur = inner + word
            else: cur += word
        lines.append(cur + m.group(3))
        if all(len(x) <= 120 for x in lines): return '\n'.join(lines)
    return line
for d, ds, fs in os.walk(path('src')):
    for n in fs:
        if n.endswith('.rs'):
            f = os.path.relpath(os.path.join(d, n), ROOT)
            t = read(f)
            u = '\n'.join(wrap(x) for x in t.split('\n'))
            if u != t: write(f, u)
if not os.path.exists(path('docs/glossary.md')): shutil.copy(os.path.join(HERE, 'new/glossary.md'), path('docs/glossary.md'))
