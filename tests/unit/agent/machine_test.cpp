// SPDX-License-Identifier: Apache-2.0
#include "machine.hpp"

#include <gtest/gtest.h>

namespace holdfast::agent {
namespace {

TEST(Machine, MeminfoFields) {
    const char* const text = "MemTotal:       16384 kB\nMemFree:  1 kB\nMemAvailable: 2048 kB\n";
    EXPECT_EQ(meminfo_field(text, "MemTotal"), 16384 * 1024);
    EXPECT_EQ(meminfo_field(text, "MemAvailable"), 2048 * 1024);
    EXPECT_EQ(meminfo_field(text, "Mem"), 0);
    EXPECT_EQ(meminfo_field("", "MemTotal"), 0);
    EXPECT_EQ(meminfo_field("MemTotal", "MemTotal"), 0);
}

TEST(Machine, ShortGpuNames) {
    EXPECT_EQ(short_gpu_name("NVIDIA A100-SXM4-80GB"), "a100");
    EXPECT_EQ(short_gpu_name("NVIDIA H100 80GB HBM3"), "h100");
    EXPECT_EQ(short_gpu_name("NVIDIA H200"), "h200");
    EXPECT_EQ(short_gpu_name("Tesla V100-PCIE-16GB"), "v100");
    EXPECT_EQ(short_gpu_name("Tesla T4"), "t4");
    EXPECT_EQ(short_gpu_name("NVIDIA L40S"), "l40s");
    EXPECT_EQ(short_gpu_name("NVIDIA GeForce RTX 4090"), "rtx4090");
    EXPECT_EQ(short_gpu_name("NVIDIA GH200 480GB"), "gh200");
    EXPECT_EQ(short_gpu_name(""), "");
}

TEST(Machine, Sizes) {
    EXPECT_EQ(bytes_from("4096"), 4096);
    EXPECT_EQ(bytes_from("4G"), std::int64_t{4} << 30);
    EXPECT_EQ(bytes_from("512m"), 512 << 20);
    EXPECT_EQ(bytes_from("1.5K"), 1536);
    EXPECT_EQ(bytes_from("2TiB"), std::int64_t{2} << 40);
    EXPECT_EQ(bytes_from("8GB"), std::int64_t{8} << 30);
    for (const char* const bad : {"", "G", "-1", "4X", "4Gx", "4 G", "1e30G", "nan"}) {
        EXPECT_FALSE(bytes_from(bad)) << bad;
    }
}

TEST(Machine, ThisOneHasSomething) {
    const Machine machine = this_machine();
    EXPECT_GE(machine.cpus, 1);
    EXPECT_GE(machine.memory_bytes, 64 << 20);
    EXPECT_GE(machine.gpus, 0);
    EXPECT_EQ(machine.gpus == 0, machine.gpu_type.empty());
    EXPECT_GT(memory_available_bytes(), 0);
}

}  // namespace
}  // namespace holdfast::agent
