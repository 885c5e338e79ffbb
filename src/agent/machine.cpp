// SPDX-License-Identifier: Apache-2.0
#include "machine.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <set>
#include <vector>

#include <dlfcn.h>
#include <sched.h>
#include <unistd.h>

#include <holdfast/log.hpp>

#include "process_tree.hpp"

namespace holdfast::agent {
namespace {

std::int64_t usable_cores() {
    // Sized at run time: the fixed cpu_set_t ends at 1,024 cores.
    for (std::size_t cores = 1024; cores <= (1U << 20); cores *= 2) {
        cpu_set_t* const set = CPU_ALLOC(cores);
        const std::size_t bytes = CPU_ALLOC_SIZE(cores);
        const bool known = ::sched_getaffinity(0, bytes, set) == 0;
        const int count = known ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (known) {
            return count;
        }
    }
    return ::sysconf(_SC_NPROCESSORS_ONLN);
}

/// The part of NVML that we use, by its stable binary interface (no header is needed).
class DriverLibrary {
  public:
    DriverLibrary() : library_(::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {}

    ~DriverLibrary() {
        if (library_ != nullptr) {
            ::dlclose(library_);
        }
    }

    DriverLibrary(const DriverLibrary&) = delete;
    DriverLibrary& operator=(const DriverLibrary&) = delete;

    template <typename F>
    [[nodiscard]] F* function(const char* name) const {
        // SAFETY: POSIX lets a dlsym pointer be called as the function that the library declares.
        return library_ == nullptr ? nullptr : reinterpret_cast<F*>(::dlsym(library_, name));
    }

  private:
    void* library_;
};

void ask_driver(Machine& machine) {
    const DriverLibrary driver;
    const auto init = driver.function<int()>("nvmlInit_v2");
    const auto shutdown = driver.function<int()>("nvmlShutdown");
    const auto count = driver.function<int(unsigned*)>("nvmlDeviceGetCount_v2");
    const auto device = driver.function<int(unsigned, void**)>("nvmlDeviceGetHandleByIndex_v2");
    const auto name = driver.function<int(void*, char*, unsigned)>("nvmlDeviceGetName");
    if (init == nullptr || shutdown == nullptr || count == nullptr || device == nullptr ||
        name == nullptr) {
        return;
    }
    if (const int error = init(); error != 0) {
        HOLD_EVENT(warn, "gpu_driver_failed", {"nvml_error", error});
        return;
    }
    unsigned devices = 0;
    if (count(&devices) == 0) {
        machine.gpus = devices;
        void* first = nullptr;
        char product[128] = {};
        if (devices > 0 && device(0, &first) == 0 && name(first, product, sizeof product) == 0) {
            product[sizeof product - 1] = '\0';
            machine.gpu_type = short_gpu_name(product);
        }
    }
    shutdown();
}

}  // namespace

std::int64_t meminfo_field(std::string_view meminfo, std::string_view field) {
    std::size_t at = 0;
    while (at < meminfo.size()) {
        const std::size_t end = std::min(meminfo.find('\n', at), meminfo.size());
        const std::string_view line = meminfo.substr(at, end - at);
        at = end + 1;
        if (!line.starts_with(field) || line.size() <= field.size() || line[field.size()] != ':') {
            continue;
        }
        std::int64_t kilobytes = 0;
        for (const char c : line.substr(field.size() + 1)) {
            if (c >= '0' && c <= '9' && kilobytes < (std::int64_t{1} << 45)) {
                kilobytes = kilobytes * 10 + (c - '0');
            }
        }
        return kilobytes * 1024;
    }
    return 0;
}

std::string short_gpu_name(std::string_view product) {
    std::vector<std::string> words(1);
    for (const char c : product) {
        if (c == ' ' || c == '-' || c == '_' || c == '/') {
            words.emplace_back();
        } else {
            words.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        }
    }
    static const std::set<std::string> kBrands = {"",       "nvidia",   "tesla", "geforce",
                                                  "quadro", "graphics", "device"};
    static const std::set<std::string> kFamilies = {"rtx", "gtx"};
    std::string name;
    for (const std::string& word : words) {
        if (kBrands.contains(word)) {
            continue;
        }
        name += word;
        if (!kFamilies.contains(word)) {
            break;
        }
    }
    return name;
}

Result<std::int64_t> bytes_from(const std::string& text) {
    const auto refuse = [&text] {
        return fail(make_error(Errc::invalid_argument, "`{}` is not a size", text)
                        .advise("write bytes or a number with K, M, G or T, as in 4G"));
    };
    char* end = nullptr;
    if (text.empty() || !std::isdigit(static_cast<unsigned char>(text.front()))) {
        return refuse();
    }
    const double number = std::strtod(text.c_str(), &end);
    std::string unit(end);
    std::int64_t factor = 1;
    if (!unit.empty()) {
        static constexpr std::string_view kUnits = "KMGT";
        const auto power =
            kUnits.find(static_cast<char>(std::toupper(static_cast<unsigned char>(unit.front()))));
        unit.erase(0, 1);
        if (power == std::string_view::npos ||
            (!unit.empty() && unit != "i" && unit != "iB" && unit != "B")) {
            return refuse();
        }
        factor = std::int64_t{1} << (10 * (power + 1));
    }
    const double bytes = number * static_cast<double>(factor);
    if (!(bytes >= 0.0 && bytes < 9e18)) {
        return refuse();
    }
    return static_cast<std::int64_t>(bytes);
}

Machine this_machine() {
    Machine machine;
    machine.cpus = usable_cores();
    machine.memory_bytes = meminfo_field(read_kernel_file("/proc/meminfo", 65536), "MemTotal");
    ask_driver(machine);
    return machine;
}

std::int64_t memory_available_bytes() {
    return meminfo_field(read_kernel_file("/proc/meminfo", 65536), "MemAvailable");
}

double load_of_one_minute() {
    double load = 0.0;
    return ::getloadavg(&load, 1) == 1 ? load : 0.0;
}

}  // namespace holdfast::agent
