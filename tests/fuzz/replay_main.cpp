// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target without libFuzzer, so that ordinary builds and sanitizers use it as a test:
// every file of the corpus, then a fixed number of inputs made from them by a fixed seed. The same
// inputs every time; finding new ones is libFuzzer's work (./dev fuzz NAME SECONDS).
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size);

namespace {

constexpr std::size_t kMutations = 3000;
constexpr std::size_t kBytesMax = 64 << 10;

void run(const std::string& input) {
    const std::vector<std::uint8_t> bytes(input.begin(), input.end());
    static_cast<void>(LLVMFuzzerTestOneInput(bytes.data(), bytes.size()));
}

std::size_t below(std::mt19937_64& random, std::size_t bound) {
    return bound == 0 ? 0 : random() % bound;
}

/// Flips, cuts, doubles and splices: crude, but it reaches every parser's error paths.
std::string mutated(std::string input, const std::string& other, std::mt19937_64& random) {
    const std::size_t changes = 1 + below(random, 8);
    for (std::size_t i = 0; i < changes; ++i) {
        const std::size_t at = below(random, input.size());
        switch (random() % 5) {
            case 0:
                if (!input.empty()) {
                    input[at] = static_cast<char>(random());
                }
                break;
            case 1:
                input.erase(at, 1 + below(random, 16));
                break;
            case 2:
                input.insert(at, input.substr(at, 1 + below(random, 64)));
                break;
            case 3:
                input.insert(at, 1 + below(random, 8), static_cast<char>(random()));
                break;
            default:
                input = input.substr(0, at) + other.substr(below(random, other.size()));
                break;
        }
        if (input.size() > kBytesMax) {
            input.resize(kBytesMax);
        }
    }
    return input;
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 2) {
        std::fprintf(stderr, "usage: %s CORPUS_FOLDER\n", arguments[0]);
        return 2;
    }
    std::vector<std::string> corpus;
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(arguments[1])) {
        files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    for (const std::filesystem::path& file : files) {
        std::ifstream in(file, std::ios::binary);
        corpus.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    }
    corpus.emplace_back();
    for (const std::string& input : corpus) {
        run(input);
    }
    std::mt19937_64 random(20240614);  // any number: the same inputs every time
    for (std::size_t i = 0; i < kMutations; ++i) {
        const std::string& base = corpus[below(random, corpus.size())];
        const std::string& other = corpus[below(random, corpus.size())];
        run(mutated(base, other, random));
    }
    std::printf("%zu inputs of the corpus and %zu made from them\n", corpus.size(), kMutations);
    return 0;
}
