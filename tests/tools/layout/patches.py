#!/usr/bin/env python3
"""Small changes by words: visibilities, knots between files, files of settings."""
import os, re, sys
ROOT = sys.argv[1]
def path(f): return os.path.join(ROOT, f)
def read(f): return open(path(f)).read()
def write(f, t): open(path(f), 'w').write(t)
def sub(f, pat, rep, flags=re.M, must=True, count=0):
    t = read(f)
    n, k = re.subn(pat, rep, t, count=count, flags=flags)
    if not k and must: print('patches: %s: no match for %s' % (f, pat), file=sys.stderr)
    write(f, n)
def block(t, start):
    """End of the item that begins at `start`."""
    d, j = 0, start
    while True:
        if t[j] == '{': d += 1
        if t[j] == '}':
            d -= 1
            if d == 0: return j + 1
        j += 1
def above(t, pattern):
    """Where the item begins whose first line has `pattern`, with its comments and attributes."""
    m = re.search(pattern, t, re.M)
    if not m: raise SystemExit('patches: nothing like %s' % pattern)
    k = t.rfind('\n', 0, m.start()) + 1
    while True:
        line = t[t.rfind('\n', 0, k - 1) + 1:k]
        if k and re.match(r'\s*(//|#\[|\)\]|[^\n]*\)\]$)', line): k -= len(line)
        else: return k
def public(f, *names):
    """Raises private functions, methods and fields to pub(super)."""
    for n in names:
        sub(f, r'^(\s*)((?:async |const )*fn %s\b)' % n, r'\1pub(super) \2')
def fields(f, struct):
    t = read(f)
    m = re.search(r'\bstruct %s\b[^{;(]*\{' % struct, t)
    end = block(t, m.end() - 1)
    body = re.sub(r'(?m)^(    )(?!pub|//|#|\s)(\w+:)', r'\1pub(super) \2', t[m.end():end])
    write(f, t[:m.end()] + body + t[end:])

# --- a store that answers at once says so; the contract names no implementation -----------------------------------------
C = 'src/store/contract.rs'
t = read(C)
m = re.search(r'    fn as_memory\(&self\) -> Option<&MemoryStore> \{\n        None', t)
if m:
    k = above(t, r'    fn as_memory\(&self\) -> Option<&MemoryStore> \{\n        None')
    t = t[:k] + '    /// This store, if it never waits: asking it directly needs no future.\n' + t[m.start():]
if 'fn as_memory' in t:
    t = re.sub(r'fn as_memory\(&self\) -> Option<&MemoryStore>', 'fn at_once(&self) -> Option<&dyn AddAtOnce>', t)
    t = t.replace('.as_memory()', '.at_once()')
t = re.sub(r'use [^;]*\bMemoryStore\b[^;]*;\n', lambda m: m.group(0) if '{' in m.group(0) else '', t)
if 'trait AddAtOnce' not in t:
    k = above(t, r'^pub struct Deadline')
    t = t[:k] + '''/// A store that never waits.
pub trait AddAtOnce {
    /// Applies the batch as [`Store::add_into`] does, before it returns.
    ///
    /// # Errors
    ///
    /// As [`Store::add_into`].
    fn add_at_once(
        &self,
        counts: &mut CountList,
        batch: &Batch,
        now: Timestamp,
    ) -> Result<(), StoreError>;
}

''' + t[k:]
write(C, t)
sub('src/store/any.rs', r'fn as_memory\(&self\) -> Option<&MemoryStore>', 'fn at_once(&self) -> Option<&dyn AddAtOnce>')
sub('src/store/any.rs', r'Self::Memory\(store\) => Some\(store\)', 'Self::Memory(store) => Some(store.as_ref())')
sub('src/store/any.rs', r'super::contract::\{([^}]*)\}', r'super::contract::{AddAtOnce, \1}')
M = 'src/store/memory.rs'
sub(M, r'fn as_memory\(&self\) -> Option<&MemoryStore>', 'fn at_once(&self) -> Option<&dyn AddAtOnce>')
t = read(M)
if 'impl AddAtOnce' not in t:
    k = t.index('impl Store for MemoryStore')
    t = t[:k] + '''impl AddAtOnce for MemoryStore {
    fn add_at_once(
        &self,
        counts: &mut CountList,
        batch: &Batch,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.apply_into(counts, batch, now)
    }
}

''' + t[k:]
t = re.sub(r'contract::\{', 'contract::{AddAtOnce, ', t, count=1)
write(M, t)
L = 'src/service/limiter.rs'
sub(L, r'memory: &MemoryStore', 'store: &dyn AddAtOnce')
sub(L, r'memory\.apply_into\(', 'store.add_at_once(')
t = read(L)
t = re.sub(r'\bmemory::MemoryStore,?\s*', '', t)
t = re.sub(r'contract::\{', 'contract::{AddAtOnce, ', t, count=1)
write(L, t)
sub('src/service/grpc.rs', r'let memory = self\.limiter\.store\.as_memory\(\)\?;', 'let store = self.limiter.store.at_once()?;')
sub('src/service/grpc.rs', r'check_at_once\(memory,', 'check_at_once(store,')

# --- the watchdog knows no queue --------------------------------------------------------------------------------------
W = 'src/store/redis/watchdog.rs'
t = read(W)
t = re.sub(r'\bqueue::Lane,\s*', '', t)
t = re.sub(r'Arc<Lane>', 'Arc<dyn Watched>', t)
if 'trait Watched' not in t:
    k = above(t, r'^pub\(super\) struct Ticks')
    t = t[:k] + '''/// Requests that wait, and that the watchdog looks after.
pub(super) trait Watched: fmt::Debug + Send + Sync {
    /// Looks once. `pause` is time in which the watchdog's own thread did not run. Returns whether it has
    /// to look again: a request waits, or came since the last look.
    fn look(&self, pause: Option<Pause>, now: Instant) -> bool;
}

''' + t[k:]
t = re.sub(r'running::Lateness\b', 'running::{Lateness, Pause}', t, count=1)
t = re.sub(r'use std::\{\n', 'use std::{\n    fmt,\n', t, count=1)
write(W, t)
Q = 'src/store/redis/queue.rs'
t = read(Q)
m = re.search(r'(?:    ///[^\n]*\n)+    pub\(super\) fn look\(&self, pause: Option<Pause>, now: Instant\) -> bool \{', t)
if m:
    e = block(t, m.end() - 1)
    body = t[t.index('fn look', m.start()):e]
    t = t[:m.start()].rstrip() + '\n\n' + t[e:].lstrip('\n')
    k = above(t, r'^pub\(super\) struct Counted')
    t = t[:k] + 'impl Watched for Lane {\n    ' + body + '\n}\n\n' + t[k:]
    t = re.sub(r'watchdog::Ticks\b', 'watchdog::{Ticks, Watched}', t, count=1)
else: print('patches: queue.rs: no look', file=sys.stderr)
write(Q, t)

# --- the topology is made of servers, and not by them -----------------------------------------------------------------
S = 'src/store/redis/servers.rs'
t = read(S)
m = re.search(r'(?:    ///[^\n]*\n)+    pub fn guide\(&self, options: &Options\) -> Guide \{', t)
if m:
    e = block(t, m.end() - 1)
    t = t[:m.start()].rstrip() + '\n\n' + t[e:].lstrip('\n')
else: print('patches: servers.rs: no guide', file=sys.stderr)
t = re.sub(r'use super::(topology::\{?Guide\}?|probe::\{?Patience\}?|options::\{?Options\}?);\n', '', t)
write(S, t)
T = 'src/store/redis/topology.rs'
sub(T, r'pub\(super\) fn new\(servers: Servers, patience: Patience\) -> Self \{',
    '''/// The task for `servers`, which has to run once for all workers. They speak to the servers as
    /// `options` say.
    pub fn new(servers: Servers, options: &Options) -> Self {
        let patience = Patience {
            deadline: options.deadline,
            lose_after: options.lose_after,
        };''')
t = read(T)
t = t.replace('use super::{', 'use super::{options::Options, ', 1)
write(T, t)
sub('src/server/run.rs', r'redis::servers::Servers', 'redis::{servers::Servers, topology::Guide}')
sub('src/server/run.rs', r'servers\.guide\(&settings\.redis\.options\(\)\)', 'Guide::new(servers.clone(), &settings.redis.options())')

sub('src/store/redis/store.rs', r'servers\.guide\(&options\)', 'Guide::new(servers.clone(), &options)')

# --- settings of `serve` know no command line -------------------------------------------------------------------------
V = 'src/settings/serve.rs'
t = read(V)
m = re.search(r'(?:    ///[^\n]*\n)+    pub fn from_environment\(\) -> Self \{', t)
if m:
    e = block(t, m.end() - 1)
    body = t[m.start():e]
    t = t[:m.start()] + t[e:].lstrip('\n')
    t = re.sub(r'use super::command_line::\{[^}]*\};\n', '', t)
    write(V, t)
    L2 = 'src/settings/command_line.rs'
    u = read(L2)
    k = above(u, r'^fn is_ratelimit')
    write(L2, u[:k] + 'impl Settings {\n' + body + '\n}\n\n' + u[k:])
else: print('patches: serve.rs: no from_environment', file=sys.stderr)

sub('build.rs', r'crate::grpc::codec::Codec', 'crate::service::grpc::codec::Codec')

# --- words that mean two things in one file, before the tables ---------------------------------------------------------
sub('src/store/redis/queue.rs', r'pub\(super\) fn tell\(&self\)', 'pub(super) fn node_changed(&self)')
sub('src/store/redis/batchers.rs', r'lane\.tell\(\)', 'lane.node_changed()')
sub('src/store/redis/store.rs', r'^enum Pushed', 'pub(super) enum Pushed')
sub('src/config/files.rs', r'let place = ', 'let location = ', must=False)
sub('src/config/files.rs', r'Path::new\(&place\)', 'Path::new(&location)', must=False)
# the pool's own trait has a type of this name
t = read('tests/it/store.rs')
t = t.replace('servers.guide(&options)', 'TopologyWatcher::new(servers.clone(), &options)')
t = re.sub(r'servers::Servers\b', 'servers::Servers, topology::TopologyWatcher', t, count=1)
write('tests/it/store.rs', t)

# --- names of metrics ---------------------------------------------------------------------------------------------------
METRICS = [('handed_back_hits', 'reconciled_hits'), ('redis_forgotten_counters', 'redis_reset_counters'), ('forgotten_hits', 'lost_hits'),
    ('refused_fast_total', 'rejected_while_open_total'), ('connection_no_place', 'connection_limit')]
for top in ('src', 'tests', 'benches', 'docs', 'deploy', 'README.md', 'CHANGELOG.md', 'config'):
    names = [path(top)] if os.path.isfile(path(top)) else [os.path.join(d, n) for d, ds, fs in os.walk(path(top)) for n in fs]
    for n in names:
        try: t = open(n).read()
        except (UnicodeDecodeError, IsADirectoryError): continue
        u = t
        for a, b in METRICS: u = re.sub(r'(?<![a-z])%s(?![a-z])' % a if a.startswith('connection') else a, b, u)
        if u != t: open(n, 'w').write(u)

M = 'src/observe/metrics.rs'
sub(M, r'&meters\.forgotten', '&meters.reset_counters')
sub(M, r'&loss\.forgotten', '&loss.lost_hits')
sub('src/server/run.rs', r'file_limit::places\(', 'file_limit::connection_limits(')
sub('src/server/run.rs', r'backend\.doors\(', 'backend.worker_store(')
sub('src/server/backend.rs', r'fn doors\(', 'fn worker_store(')

sub('src/store/redis/cluster.rs', r'\.split\.places\(\)', '.split.stores()')
sub('src/store/redis/store.rs', r'    use super::\*;', '    use super::*;\n    use crate::store::redis::topology::Guide;')
sub('src/config/tests.rs', r'\Ause ', 'use std::{fs, path::PathBuf};\n\nuse super::{node, yaml};\nuse crate::core::{counter::KeyFormat, limit::Algorithm};\nuse ')
sub('benches/core/rooms.rs', r'check_at_once\((&?)(\w+(?:\.\w+)*), ', lambda m: 'check_at_once(%s.as_ref(), ' % m.group(2), must=False)

# --- last words of our own in texts -------------------------------------------------------------------------------------
t = read('src/store/redis/store.rs')
m = re.search(r'(?m)^//! RedisStore ──.*\n(?:^//!.*\n)*?^//! +Map ◀──.*\n', t)
if m:
    t = t[:m.start()] + '''//! RedisStore ──parts──▶ NodeQueue ──Batcher──▶ Connection             each worker, each node
//!      ▲                    ▲          │suspects
//!   SlotMap ◀──TopologyWatcher──▶ Breaker ◀──Probe──Detector         once for the process
''' + t[m.end():]
    write('src/store/redis/store.rs', t)
sub('src/service/grpc.rs', r'reason = "this is the door at which time comes in"', 'reason = "time is read here, once a request"', must=False)
sub('src/service/budget.rs', r'until they are written or nobody wants them any more', 'until they are written or dropped', must=False)
sub('src/service/grpc/unary.rs', r'expect\("nobody polls a future that is over"\)', 'expect("a future that is over is not polled")', must=False)
sub('src/cli/lint_envoy/tests.rs', r'"nobody knows"', '"it is not known"', must=False)
