"""What goes where. All names are the old ones on the left and the new ones on the right."""

def P(text): return tuple(x for x in text.split('::') if x)

def table(pairs): return {P(a): P(b) for a, b in pairs}

# Modules (with all below them) that move. The longest prefix counts.
MOVES = table([
    # what knows nothing of rate limits
    ('causes', 'foundation::causes'),
    ('histogram', 'foundation::histogram'),
    ('lent', 'foundation::object_pool'),
    ('silence', 'foundation::log_throttle'),
    ('text', 'foundation::text'),
    # a request's way from the question to the decision
    ('calendar', 'core::calendar'),
    ('counter', 'core::counter'),
    ('decision', 'core::decision'),
    ('limit', 'core::limit'),
    ('matcher', 'core::matcher'),
    ('metadata', 'core::metadata'),
    ('meter', 'core::algorithm'),
    ('plan', 'core::plan'),
    ('request', 'core::request'),
    ('verdict', 'core::charging'),
    ('window', 'core::window'),
    ('dial', 'net::dial'),
    ('pem', 'net::pem'),
    # stores
    ('store::on_loss', 'store::loss'),
    ('store::on_loss::begin', 'store::loss::first_count'),
    ('store::on_loss::hand_back', 'store::loss::reconcile'),
    ('store::on_loss::loss', 'store::loss::state'),
    ('store::on_loss::meters', 'store::loss::stats'),
    ('store::redis::alarm', 'store::redis::late_reply'),
    ('store::redis::connection', 'store::redis::pool'),
    ('store::redis::link', 'store::redis::connection'),
    ('store::redis::guide', 'store::redis::topology'),
    ('store::redis::lane', 'store::redis::queue'),
    ('store::redis::map', 'store::redis::slot_map'),
    ('store::redis::seats', 'store::redis::pending'),
    ('store::redis::ticks', 'store::redis::watchdog'),
    ('store::redis::trouble', 'store::redis::failure'),
    # watching
    ('metrics', 'observe::metrics'),
    ('traces', 'observe::traces'),
    # answering
    ('admin', 'service::admin'),
    ('grpc', 'service::grpc'),
    ('grpc::quick', 'service::grpc::fast_path'),
    ('held', 'service::budget'),
    ('limiter', 'service::limiter'),
    # rules while it runs
    ('changes', 'control::changes'),
    ('reload', 'control::reload'),
    ('xds', 'control::xds'),
    ('log', 'server::log'),
    ('server::bare', 'server::bench'),
    ('server::descriptors', 'server::file_limit'),
    ('server::quota', 'server::cpu_quota'),
    ('ask', 'cli::ask'),
    ('lint_envoy', 'cli::lint_envoy'),
])

# Modules whose own file goes: lib.rs lists their children. Where the rest of their content goes.
ROOTS = table([
    ('config', 'config::files'),
    ('store', 'store::contract'),
    ('store::redis', 'store::redis::store'),
    ('server', 'server::run'),
    ('settings', 'settings::command_line'),
])

def split(pairs):
    out = {}
    for to, items in pairs:
        for item in items.split(): out[item] = P(to)
    return out

# Items that leave the file of their module.
SPLITS = {
    P('config'): split([
        ('config::fault', 'Fault Problem unlocated MAX_FILE_BYTES'),
        ('config::file', 'File'),
        ('config::options', 'Options'),
        ('config::source', 'Source Runtime Walk read_text is_hidden is_kubelets is_rules read'),
    ]),
    P('store'): split([
        ('store::any', 'AnyStore'),
    ]),
    P('store::redis'): split([
        ('store::redis::options', 'Options Clock'),
        ('store::redis::servers', 'Servers Shared'),
        ('store::redis::batchers', 'Batchers View follow_breaker'),
        ('store::redis::stats', 'Meters'),
        ('foundation::lock', 'lock'),
    ]),
    P('store::memory'): split([
        ('store::memory::slot', 'Slot MeterSlot Own OWN_BYTES'),
    ]),
    P('store::replicas'): split([
        ('store::replicas::number', 'Number NEVER'),
    ]),
    P('server'): split([
        ('server::error', 'ServerError list'),
        ('server::runtime', 'runtime'),
        ('server::rules', 'RuleSource'),
        ('server::backend', 'Backend RedisBackend Doors worker_count state_file kept_replicas counts_locally'),
        ('server::statistics', 'renderer mapping_file'),
        ('server::health', 'HealthDoors HEALTH_NAMES'),
        ('server::signals', 'Signals'),
        ('server::services', 'service traces others'),
    ]),
    P('settings'): split([
        ('settings::serve', 'Settings Runtime Listen Decisions Bounds Process LogLevel LogFormat'),
    ]),
    P('xds'): split([
        ('control::xds::error', 'XdsError'),
    ]),
    P('xds::connect'): split([
        ('control::xds::error', 'BadServer TlsError'),
    ]),
    P('grpc::unary'): split([
        ('service::grpc::unary::encoding', 'too_large'),
    ]),
    P('store::on_loss::hand_back'): split([
        ('store::loss::state', 'QUIET'),
    ]),
    P('lint_envoy'): split([
        ('cli::lint_envoy::unreadable', 'Unreadable at'),
    ]),
}
SPLITS = {k: v for k, v in SPLITS.items() if v}

# `use super::*` of a module that is no file any more.
GLOBS = {
    P('config'): [P('config::fault'), P('config::file'), P('config::files'), P('config::options'), P('config::source')],
}

# Files that lie beside their module.
OTHERS = [
    ('src/store/redis/step.lua', 'src/store/redis/step.lua'),
    ('src/metrics/mapping.yaml', 'src/observe/metrics/mapping.yaml'),
]
OTHERS = [o for o in OTHERS if o[0] != o[1]]

# Traits that are in use where these words stand.
TRAITS = {
    'Digest': r'Sha256',
    'Write': r'\bwrite!|\bwriteln!|\.write_char|\.write_str',
    'StreamExt': r'\.next\(',
    'BufMut': r'\.put_|\.put\(',
    'CommandFactory': r'::command\(\)',
    'FromArgMatches': r'from_arg_matches',
    'BuildHasher': r'hash_one',
    'Parser': r'parse_from|\bParser\b',
}

# Imports that a piece does not need although the word stands in it.
DROPS = {(P(a), b) for a, b in [
    ('server::error', 'Rules'),
    ('server::run', 'signal'),
    ('server::health', 'service'),
    ('settings::serve', 'Parser'),
    ('config::source', 'Write'),
]}
