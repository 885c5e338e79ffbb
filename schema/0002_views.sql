-- SPDX-License-Identifier: Apache-2.0
-- Views for people: `hold sql "SELECT * FROM v_job"`. Durations are seconds; a time is microseconds since the Unix epoch.
-- They read rows only: what still goes on (a job that waits or runs) is measured up to the newest heartbeat, the
-- latest instant that the rows know of.

-- One row per job: how long it waited, how long it has run, where, and why it waits or ended.
CREATE VIEW v_job AS
SELECT j.id,
       j.name,
       j.user,
       j.state,
       round((CASE WHEN j.start_us > 0 THEN j.start_us
                   WHEN j.end_us > 0 THEN j.end_us
                   ELSE max(j.submit_us, coalesce((SELECT max(at_us) FROM node_heartbeat), 0)) END - j.submit_us) / 1e6, 3) AS wait_s,
       round((CASE WHEN j.start_us = 0 THEN 0
                   WHEN j.end_us > 0 THEN j.end_us - j.start_us
                   ELSE max(0, coalesce((SELECT max(at_us) FROM node_heartbeat), 0) - j.start_us) END) / 1e6, 3) AS run_s,
       coalesce((SELECT group_concat(node, ',') FROM (SELECT DISTINCT t.node FROM task t WHERE t.job = j.id AND t.node != '' ORDER BY t.node)), '') AS nodes,
       j.reason
FROM job j;

-- One row per node: what it has, what leases hold (revoked ones that its agent must still confirm included), what is free.
CREATE VIEW v_node_use AS
SELECT n.id,
       n.name,
       n.pool,
       n.state,
       n.cpus,
       n.cpus - coalesce(sum(h.cpus), 0) AS cpus_free,
       n.memory_bytes,
       n.memory_bytes - coalesce(sum(h.memory_bytes), 0) AS memory_free,
       n.gpus,
       n.gpus - coalesce(sum(h.gpus), 0) AS gpus_free,
       coalesce(sum(h.active), 0) AS tasks,
       count(h.id) - coalesce(sum(h.active), 0) AS revoked,
       n.reason
FROM node n
LEFT JOIN (SELECT id, node, cpus, memory_bytes, gpus, 1 AS active FROM lease
           UNION ALL
           SELECT id, node, cpus, memory_bytes, gpus, 0 FROM lease_revoked) h ON h.node = n.id
WHERE n.state != 'removed'
GROUP BY n.id;

-- One row per training job: its membership epoch, the steps that every stage has committed, the newest loss, and its workers.
CREATE VIEW v_training AS
SELECT r.job,
       j.name,
       r.state,
       r.epoch,
       r.step,
       (SELECT s.loss FROM training_step s WHERE s.job = r.job AND s.loss IS NOT NULL ORDER BY s.step DESC LIMIT 1) AS loss,
       (SELECT s.step_us FROM training_step s WHERE s.job = r.job ORDER BY s.step DESC LIMIT 1) AS step_us,
       (SELECT count(*) FROM training_worker w WHERE w.job = r.job AND w.state = 'live') AS live,
       (SELECT count(*) FROM training_worker w WHERE w.job = r.job) AS workers,
       r.reason
FROM training_run r
JOIN job j ON j.id = r.job;

-- One row per dead worker: when its death became a row (detected_us), how long until the survivors formed the next epoch
-- (reform_ms) and made their first step in it (resume_ms), how many iterations were begun again, and when the worker
-- was back in the pipeline. NULL: not yet.
CREATE VIEW v_recovery AS
SELECT d.job,
       d.worker,
       d.text AS why,
       d.epoch AS lost_in_epoch,
       d.step,
       d.at_us AS detected_us,
       e.epoch AS next_epoch,
       round((e.at_us - d.at_us) / 1e3, 3) AS reform_ms,
       round((f.at_us - d.at_us) / 1e3, 3) AS resume_ms,
       e.redone,
       (SELECT b.at_us FROM training_event b WHERE b.job = d.job AND b.kind = 'rejoined' AND b.worker = d.worker AND b.seq > d.seq
        ORDER BY b.seq LIMIT 1) AS rejoined_us
FROM training_event d
LEFT JOIN training_event e ON e.job = d.job
    AND e.seq = (SELECT min(x.seq) FROM training_event x WHERE x.job = d.job AND x.kind IN ('began', 'epoch') AND x.seq > d.seq)
LEFT JOIN training_event f ON f.job = d.job
    AND f.seq = (SELECT min(x.seq) FROM training_event x WHERE x.job = d.job AND x.kind = 'first_step' AND x.seq > d.seq)
WHERE d.kind = 'worker_dead';
