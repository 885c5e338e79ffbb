-- SPDX-License-Identifier: Apache-2.0
-- The cluster as rows. Times are microseconds since the Unix epoch; 0 means "not yet". States are the words of the API.
-- ids come from id_sequence (store). JSON columns hold the API's message of that name.

CREATE TABLE pool (
    name        TEXT PRIMARY KEY,
    description TEXT NOT NULL DEFAULT ''
) STRICT;
INSERT INTO pool (name, description) VALUES ('default', 'nodes that named no pool');

CREATE TABLE node (
    id           INTEGER PRIMARY KEY,
    name         TEXT NOT NULL UNIQUE,
    pool         TEXT NOT NULL REFERENCES pool (name),
    state        TEXT NOT NULL CHECK (state IN ('up', 'down', 'draining', 'drained', 'cordoned', 'removed')),
    reason       TEXT NOT NULL DEFAULT '',
    cpus         INTEGER NOT NULL DEFAULT 0,
    memory_bytes INTEGER NOT NULL DEFAULT 0,
    gpus         INTEGER NOT NULL DEFAULT 0,
    gpu_type     TEXT NOT NULL DEFAULT '',
    address      TEXT NOT NULL DEFAULT '',
    version      TEXT NOT NULL DEFAULT '',
    instance     TEXT NOT NULL DEFAULT '',  -- of the agent that registered last
    epoch        INTEGER NOT NULL DEFAULT 0,  -- grows with each registration
    wanted       TEXT NOT NULL DEFAULT 'up' CHECK (wanted IN ('up', 'cordoned', 'drained')),  -- by the operator; what a node that was down returns to
    drain_deadline_us INTEGER NOT NULL DEFAULT 0,
    registered_us INTEGER NOT NULL DEFAULT 0
) STRICT;

-- Relaxed: written every heartbeat, not part of history.
CREATE TABLE node_heartbeat (
    node                   INTEGER PRIMARY KEY REFERENCES node (id) ON DELETE CASCADE,
    at_us                  INTEGER NOT NULL,
    load1                  REAL NOT NULL DEFAULT 0,
    memory_available_bytes INTEGER NOT NULL DEFAULT 0
) STRICT;

-- What was asked for. Kept apart from job so that a change of state does not copy the text into the history.
CREATE TABLE job_spec (
    id   INTEGER PRIMARY KEY,                   -- the job, or the array whose elements share it
    spec TEXT NOT NULL                          -- JobSpec as JSON; of an array: without its indices
) STRICT;

-- A job array: what `submit` answered. Its elements are jobs of their own (job.array_parent).
CREATE TABLE job_array (
    id        INTEGER PRIMARY KEY,              -- from the same sequence as job.id
    name      TEXT NOT NULL,
    user      TEXT NOT NULL,
    elements  INTEGER NOT NULL,
    at_once   INTEGER NOT NULL DEFAULT 0,       -- most elements running together; 0: no limit
    submit_us INTEGER NOT NULL
) STRICT;

CREATE TABLE job (
    id             INTEGER PRIMARY KEY,
    name           TEXT NOT NULL,
    user           TEXT NOT NULL,
    pool           TEXT NOT NULL,               -- no reference: a job's history outlives its pool
    state          TEXT NOT NULL CHECK (state IN ('pending', 'running', 'paused', 'completed', 'failed', 'cancelled', 'timeout', 'node_fail')),
    reason         TEXT NOT NULL DEFAULT '',
    priority       INTEGER NOT NULL DEFAULT 0,
    submit_us      INTEGER NOT NULL,
    start_us       INTEGER NOT NULL DEFAULT 0,
    end_us         INTEGER NOT NULL DEFAULT 0,
    exit_code      INTEGER NOT NULL DEFAULT 0,
    tasks          INTEGER NOT NULL,            -- tasks in the gang
    cpus           INTEGER NOT NULL,            -- per task
    memory_bytes   INTEGER NOT NULL,
    gpus           INTEGER NOT NULL,
    gpu_type       TEXT NOT NULL DEFAULT '',
    recovery       TEXT NOT NULL CHECK (recovery IN ('none', 'requeue', 'recycle')),
    restarts       INTEGER NOT NULL DEFAULT 0,
    array_parent   INTEGER NOT NULL DEFAULT 0,  -- job_array.id; 0: not an element
    array_index    INTEGER NOT NULL DEFAULT 0,
    warning        TEXT NOT NULL DEFAULT '',    -- of the last placement, shown by `hold why`
    spec           INTEGER NOT NULL REFERENCES job_spec (id)
) STRICT;
CREATE INDEX job_by_state ON job (state, priority DESC, submit_us, id);  -- FIFO order without sorting
CREATE INDEX job_by_array ON job (array_parent) WHERE array_parent != 0;

CREATE TABLE task (
    id        INTEGER PRIMARY KEY,
    job       INTEGER NOT NULL REFERENCES job (id),
    rank      INTEGER NOT NULL,
    state     TEXT NOT NULL CHECK (state IN ('pending', 'leased', 'running', 'completed', 'failed', 'cancelled', 'timeout', 'lost')),
    node      TEXT NOT NULL DEFAULT '',
    lease     INTEGER NOT NULL DEFAULT 0,       -- while leased or running
    last_lease INTEGER NOT NULL DEFAULT 0,      -- the newest ever granted: output and repeats that come late
    exit_code INTEGER NOT NULL DEFAULT 0,
    signal    INTEGER NOT NULL DEFAULT 0,
    pid       INTEGER NOT NULL DEFAULT 0,
    start_us  INTEGER NOT NULL DEFAULT 0,
    end_us    INTEGER NOT NULL DEFAULT 0,
    reason    TEXT NOT NULL DEFAULT '',
    worker    TEXT NOT NULL DEFAULT '',         -- training: 'pipeline:stage'
    UNIQUE (job, rank)
) STRICT;
CREATE INDEX task_active ON task (job, state) WHERE state IN ('pending', 'leased', 'running');

-- The right to run one task on one node. id is the fencing number: it only grows. One lease per task at most.
CREATE TABLE lease (
    id           INTEGER PRIMARY KEY,
    task         INTEGER NOT NULL UNIQUE REFERENCES task (id),
    job          INTEGER NOT NULL REFERENCES job (id),
    node         INTEGER NOT NULL REFERENCES node (id),
    cpus         INTEGER NOT NULL,
    memory_bytes INTEGER NOT NULL,
    gpus         INTEGER NOT NULL,
    gpu_slots    TEXT NOT NULL DEFAULT '[]',    -- JSON array of device numbers
    secret       TEXT NOT NULL,                 -- proves the lease (training workers)
    granted_us   INTEGER NOT NULL
) STRICT;
CREATE INDEX lease_by_node ON lease (node);
CREATE INDEX lease_by_job ON lease (job);

-- A lease that was taken back while its node could not be told: the agent must kill the task before its slots are free.
CREATE TABLE lease_revoked (
    id         INTEGER PRIMARY KEY,             -- the fencing number
    task       INTEGER NOT NULL,
    job        INTEGER NOT NULL,
    node       INTEGER NOT NULL,
    cpus         INTEGER NOT NULL,
    memory_bytes INTEGER NOT NULL,
    gpus         INTEGER NOT NULL,
    gpu_slots    TEXT NOT NULL DEFAULT '[]',
    revoked_us INTEGER NOT NULL,
    reason     TEXT NOT NULL
) STRICT;
CREATE INDEX lease_revoked_by_node ON lease_revoked (node);

CREATE TABLE log_chunk (
    task   INTEGER NOT NULL REFERENCES task (id),
    stream TEXT NOT NULL CHECK (stream IN ('stdout', 'stderr')),
    lease  INTEGER NOT NULL,
    offset INTEGER NOT NULL,                    -- of this lease's output
    at_us  INTEGER NOT NULL,
    text   BLOB NOT NULL,
    PRIMARY KEY (task, stream, lease, offset)
) STRICT, WITHOUT ROWID;

-- How far a stream of output has come, so that an append reads one row.
CREATE TABLE log_position (
    task   INTEGER NOT NULL REFERENCES task (id),
    stream TEXT NOT NULL CHECK (stream IN ('stdout', 'stderr')),
    lease  INTEGER NOT NULL,
    offset INTEGER NOT NULL,                    -- everything below has been received
    stored INTEGER NOT NULL,                    -- bytes kept (the rest was over the limit)
    PRIMARY KEY (task, stream, lease)
) STRICT, WITHOUT ROWID;

CREATE TABLE token (
    id          INTEGER PRIMARY KEY,
    user        TEXT NOT NULL,                  -- node tokens: the node's name
    role        TEXT NOT NULL CHECK (role IN ('user', 'operator', 'admin', 'enrol', 'node')),
    hash        TEXT NOT NULL UNIQUE,           -- SHA-256 of the secret, hex
    description TEXT NOT NULL DEFAULT '',
    created_us  INTEGER NOT NULL,
    expires_us  INTEGER NOT NULL DEFAULT 0,
    revoked_us  INTEGER NOT NULL DEFAULT 0,
    used_us     INTEGER NOT NULL DEFAULT 0      -- enrolment tokens work once
) STRICT;

-- Training: one row per pipeline job, one per worker, one per committed step.
CREATE TABLE training_run (
    job       INTEGER PRIMARY KEY REFERENCES job (id),
    epoch     INTEGER NOT NULL DEFAULT 0,       -- membership epoch: fences old workers
    step      INTEGER NOT NULL DEFAULT 0,       -- steps that every stage has committed
    state     TEXT NOT NULL CHECK (state IN ('forming', 'running', 'recovering', 'pausing', 'stalled', 'finished', 'failed')),
    reason    TEXT NOT NULL DEFAULT '',
    cluster_key TEXT NOT NULL DEFAULT ''        -- of the present epoch
) STRICT;

CREATE TABLE training_worker (
    job      INTEGER NOT NULL REFERENCES job (id),
    pipeline INTEGER NOT NULL,
    stage    INTEGER NOT NULL,
    state    TEXT NOT NULL CHECK (state IN ('waiting', 'live', 'dead')),
    lease    INTEGER NOT NULL DEFAULT 0,
    node     TEXT NOT NULL DEFAULT '',
    epoch    INTEGER NOT NULL DEFAULT 0,        -- since when in this state
    why      TEXT NOT NULL DEFAULT '',
    failures INTEGER NOT NULL DEFAULT 0,        -- exits of its own accord since the run last made a step
    failed_step INTEGER NOT NULL DEFAULT -1,    -- the run's step at the last of them
    at_us    INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (job, pipeline, stage)
) STRICT, WITHOUT ROWID;

CREATE TABLE training_step (
    job          INTEGER NOT NULL REFERENCES job (id),
    step         INTEGER NOT NULL,
    epoch        INTEGER NOT NULL,
    loss         REAL,                          -- NULL: not a number, or lost with the workers that knew it
    step_us      INTEGER NOT NULL,              -- slowest worker
    committed_us INTEGER NOT NULL,
    PRIMARY KEY (job, step)
) STRICT, WITHOUT ROWID;

-- Recoveries: one row for each change of membership after the first epoch.
CREATE TABLE training_event (
    job       INTEGER NOT NULL REFERENCES job (id),
    seq       INTEGER NOT NULL,
    kind      TEXT NOT NULL CHECK (kind IN ('began', 'worker_dead', 'epoch', 'rejoined', 'first_step', 'finished', 'stalled', 'failed')),
    epoch     INTEGER NOT NULL,
    step      INTEGER NOT NULL,
    worker    TEXT NOT NULL DEFAULT '',
    redone    INTEGER NOT NULL DEFAULT 0,       -- iterations begun again
    text      TEXT NOT NULL DEFAULT '',
    at_us     INTEGER NOT NULL,
    PRIMARY KEY (job, seq)
) STRICT, WITHOUT ROWID;

INSERT INTO history_exempt (name, why) VALUES
    ('node_heartbeat', 'written every second; node.state holds the transitions'),
    ('log_chunk', 'is a log itself'),
    ('log_position', 'follows log_chunk'),
    ('training_step', 'append-only itself');
INSERT INTO history_redacted (tbl, col) VALUES
    ('token', 'hash'), ('lease', 'secret'), ('training_run', 'cluster_key');
