// SPDX-License-Identifier: Apache-2.0
// One thread of arithmetic for each worker. Workers share a machine's cores, and the number of
// threads decides how BLAS cuts a product, hence the last bits of its result.
#pragma once

namespace holdfast::training {

/// Sets OpenBLAS, if it is in this process, to one thread. Call before the first product and on one
/// thread.
///
/// OpenBLAS starts its pool when the library is loaded, before any code of ours: whoever starts a
/// worker should also set OPENBLAS_NUM_THREADS=1 and OMP_NUM_THREADS=1 in its environment, which
/// keeps the pool from being made at all.
void limit_numeric_threads();

}  // namespace holdfast::training
