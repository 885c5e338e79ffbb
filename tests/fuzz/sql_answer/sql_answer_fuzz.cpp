// SPDX-License-Identifier: Apache-2.0
// What hold-sql answers, as the server reads it: that process runs a stranger's statement, so its
// bytes are not trusted. Whatever they are, the answer is bounded by the input.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "sql/sql_answer.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
    const std::string text(bytes, bytes + size);
    const auto answer = holdfast::server::sql::parse_answer(text);
    if (!answer) {
        return 0;
    }
    std::size_t cells = 0;
    for (const auto& row : answer->rows) {
        if (row.size() != answer->columns.size()) {
            std::abort();
        }
        cells += row.size();
    }
    if (cells > size || answer->columns.size() > size) {
        std::abort();
    }
    return 0;
}
