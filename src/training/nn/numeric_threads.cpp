// SPDX-License-Identifier: Apache-2.0
#include "nn/numeric_threads.hpp"

#include <dlfcn.h>

namespace holdfast::training {

void limit_numeric_threads() {
    void* symbol = ::dlsym(RTLD_DEFAULT, "openblas_set_num_threads");
    if (symbol == nullptr) {
        return;  // another BLAS, or none
    }
    using SetThreads = void (*)(int);
    // SAFETY: POSIX lets dlsym's result be converted to a function pointer; the signature is
    // OpenBLAS's public one.
    reinterpret_cast<SetThreads>(symbol)(1);
}

}  // namespace holdfast::training
