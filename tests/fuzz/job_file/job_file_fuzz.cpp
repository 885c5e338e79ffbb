// SPDX-License-Identifier: Apache-2.0
// Job files and batch scripts come from strangers: whatever the bytes, reading them ends with a job
// or an error that names its place, and a job that was accepted has sound numbers and is text.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "job_file.hpp"
#include "text.hpp"

namespace {

using holdfast::Result;
namespace cli = holdfast::cli;

void require(bool condition) {
    if (!condition) {
        std::abort();
    }
}

void check(const Result<holdfast::v1::JobSpec>& spec) {
    if (!spec) {
        require(!spec.error().message.empty() && !spec.error().where.empty());
        require(cli::printable(spec.error().message) == spec.error().message);
        return;
    }
    require(spec->tasks() >= 1 && spec->tasks() <= cli::kTasksMax);
    require(spec->tasks_per_node() >= 0 && spec->tasks_per_node() <= cli::kTasksMax);
    require(spec->per_task().cpus() >= 1 && spec->per_task().gpus() >= 0);
    require(spec->per_task().memory_bytes() >= 0 && spec->time_limit_s() >= 0);
    require(spec->array_size() <= cli::kArrayElementsMax);
    require(spec->run().size() <= cli::kRunBytesMax);
    require(spec->has_training() || !spec->run().empty());
    require(cli::is_utf8(spec->run()) && cli::is_utf8(spec->name()) && !spec->name().empty());
    std::string bytes;
    require(spec->SerializeToString(&bytes));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
    // SAFETY: any byte may be read as a char.
    const std::string_view text(reinterpret_cast<const char*>(bytes), size);
    check(cli::read_job_file(text, "job").and_then(cli::to_spec));
    check(cli::read_batch_script(text, "job", {"a b"}).and_then(cli::to_spec));
    static_cast<void>(cli::script_warnings(text));
    if (size <= 256) {
        static_cast<void>(cli::parse_array(text));
        static_cast<void>(cli::parse_time_limit(text));
        static_cast<void>(cli::parse_memory(text));
        static_cast<void>(cli::parse_gpus(text));
        if (const auto hosts = cli::expand_hosts(text); hosts) {
            static_cast<void>(cli::compress_hosts(*hosts));
        }
    }
    return 0;
}
