// SPDX-License-Identifier: Apache-2.0
// The records that agent and launcher leave each other. A job cannot write them, but a torn file
// or another version can be there. What is accepted survives being written and read again.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "task_files.hpp"

namespace {

using namespace holdfast;  // NOLINT(google-build-using-namespace): one small program

template <typename Record>
void check(const std::string& text, Result<Record> (*parse)(const std::string&)) {
    const Result<Record> record = parse(text);
    if (!record) {
        if (record.error().message.empty()) {
            std::abort();  // every refusal says why
        }
        return;
    }
    const Result<Record> again = parse(agent::to_json(*record));
    if (!again || !(*again == *record)) {
        std::abort();
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
    const std::string text(bytes, bytes + size);
    check(text, agent::launch_spec_from);
    check(text, agent::launcher_record_from);
    check(text, agent::stop_request_from);
    check(text, agent::exit_record_from);
    return 0;
}
