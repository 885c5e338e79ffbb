// SPDX-License-Identifier: Apache-2.0
/// Every constraint's finding: its words, its numbers, and whether it can ever be met.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster.hpp"

namespace holdfast::placement {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// "constraint: text" with "!" before a finding that can never be met.
std::vector<std::string> said(const ClusterView& cluster, const PendingJob& pending) {
    std::vector<std::string> lines;
    for (const Finding& finding : explain(cluster, pending).findings) {
        EXPECT_FALSE(finding.fix.empty()) << finding.text;
        lines.push_back((finding.never ? "!" : "") + finding.constraint + ": " + finding.text);
    }
    return lines;
}

TEST(Explain, AJobThatFitsHasNoFindings) {
    const Waiting waiting = explain({{node(1, 4)}, {}}, job(1, 1, 4));
    EXPECT_THAT(waiting.findings, IsEmpty());
    EXPECT_EQ(waiting.reason, "fits now: the next round places it");
    EXPECT_EQ(waiting.job, JobId(1));
}

TEST(Explain, SizesNameTheLargestNode) {
    const ClusterView cluster{{node(1, 2, 64), node(3, 4, 16)}, {}};
    EXPECT_THAT(said(cluster, job(1, 1, 8)),
                ElementsAre("!gpus: wants 8 gpus per task; the largest node (n3) has 4"));
    EXPECT_EQ(explain(cluster, job(1, 1, 8)).reason,
              "no node can ever run it as the cluster is: wants 8 gpus per task; the largest node "
              "(n3) has 4");
    EXPECT_EQ(explain(cluster, job(1, 1, 8)).findings[0].fix,
              "ask for at most 4 gpus per task, or add a node with 8");
    EXPECT_THAT(
        said(cluster, job(1, 1, 5, 65, 512 * kGiB)),
        ElementsAre("!gpus: wants 5 gpus per task; the largest node (n3) has 4",
                    "!cpus: wants 65 cpus per task; the largest node (n1) has 64",
                    "!memory: wants 512.0 GiB of memory per task; the largest node (n1) has "
                    "256.0 GiB"));
    EXPECT_THAT(
        said(cluster, job(1, 1, 4, 32)),
        ElementsAre("!per_task: wants 4 gpus and 32 cpus on one node per task; each of these "
                    "some node has, but none has them together"));
}

TEST(Explain, PoolAndNodeLists) {
    ClusterView cluster{{node(1, 4), node(2, 4)}, {}};
    PendingJob one = job(1, 1, 1);
    one.pool = "gpu";
    EXPECT_THAT(said(cluster, one), ElementsAre("!pool: pool 'gpu' has no nodes"));
    one.pool = "default";
    one.nodes = {"n8", "n9"};
    EXPECT_THAT(said(cluster, one),
                ElementsAre("!nodes: asks for nodes n8, n9, which pool 'default' does not have"));
    one.nodes = {};
    one.exclude_nodes = {"n1", "n2"};
    EXPECT_THAT(said(cluster, one),
                ElementsAre("!exclude_nodes: excludes every node that it could run on"));
    one.exclude_nodes = {};
    one.per_task.gpu_type = "b200";
    EXPECT_THAT(said(cluster, one),
                ElementsAre("!gpu_type: wants gpus of type b200; its nodes have 8 of h100"));
}

TEST(Explain, GangsThatTheWholeClusterCannotHold) {
    const ClusterView cluster{{node(1, 3), node(2, 3)}, {}};
    EXPECT_THAT(
        said(cluster, job(1, 3, 2)),
        ElementsAre("!gang: needs 3 tasks together, each with 2 gpus and 1 cpu; the 2 nodes "
                    "that can take them hold 2 even when idle"));
    PendingJob spread = job(1, 3, 1);
    spread.tasks_per_node = 1;
    EXPECT_THAT(
        said(cluster, spread),
        ElementsAre("!gang: needs 3 tasks together, each with 1 gpu and 1 cpu and at most 1 "
                    "on a node; the 2 nodes that can take them hold 2 even when idle"));
}

TEST(Explain, WhatIsHeldByWhom) {
    ClusterView cluster{{node(1, 4), node(2, 4)}, {}};
    cluster.nodes[0].free.gpus = 1;
    cluster.nodes[0].holders = {{JobId(7), {1, 0, 2, ""}}, {JobId(9), {1, 0, 1, ""}}};
    cluster.nodes[1].free.gpus = 3;
    cluster.nodes[1].holders = {{JobId(9), {1, 0, 1, ""}}};
    EXPECT_THAT(said(cluster, job(1, 6, 1)),
                ElementsAre("gpus: needs 6 gpus in all, 4 of 8 are free (2 held by job-7, 2 by "
                            "job-9)"));
    // Enough in all, but in pieces.
    EXPECT_THAT(said(cluster, job(1, 1, 4)),
                ElementsAre("gang: a task needs 4 gpus and 1 cpu on one node; there is room "
                            "for 0 now"));
    EXPECT_THAT(
        said(cluster, job(1, 2, 2)),
        ElementsAre("gang: each of 2 tasks needs 2 gpus and 1 cpu on one node; there is room "
                    "for 1 now (1 on n2)"));
}

TEST(Explain, NodesThatTakeNoTasks) {
    ClusterView cluster{{node(1, 4), node(2, 4)}, {}};
    cluster.nodes[0].schedulable = false;
    cluster.nodes[0].state = "down";
    EXPECT_THAT(said(cluster, job(1, 8, 1)),
                ElementsAre("gpus: needs 8 gpus in all, 4 of 4 are free",
                            "node state: 1 of 2 nodes that could run it take no tasks (n1 down)"));
    cluster.nodes[1].schedulable = false;
    cluster.nodes[1].state = "draining";
    EXPECT_THAT(said(cluster, job(1, 1, 1)),
                ElementsAre("node state: every node that could run it takes no tasks (n1 down, n2 "
                            "draining)"));
}

TEST(Explain, ArrayLimit) {
    PendingJob element = job(1, 1, 1);
    element.array = 5;
    element.array_at_once = 2;
    EXPECT_THAT(said({{node(1, 4)}, {{5, 2}}}, element),
                ElementsAre("array limit: 2 elements of array 5 run, its limit is 2"));
    EXPECT_THAT(said({{node(1, 4)}, {{5, 1}}}, element), IsEmpty());
}

TEST(Explain, WarnsOfPeersThatWouldShareANode) {
    const Waiting waiting = explain({{node(1, 8)}, {}}, training(1, 2, 2));
    EXPECT_THAT(waiting.findings, IsEmpty());
    EXPECT_EQ(waiting.warnings.size(), 2U);
}

}  // namespace
}  // namespace holdfast::placement
