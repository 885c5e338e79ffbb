# SPDX-License-Identifier: Apache-2.0
# Options are for real choices only; each is reported in the summary.
if(DEFINED ENV{CI})
    set(holdfast_developer_default ON)
else()
    set(holdfast_developer_default OFF)
endif()
option(HOLDFAST_DEVELOPER "Warnings as errors and developer-only checks" ${holdfast_developer_default})
option(HOLDFAST_WITH_TORCH "Build the libtorch training backend" ON)
option(HOLDFAST_WITH_TESTS "Build the tests" ON)
option(HOLDFAST_WITH_BENCH "Build the benchmarks" OFF)
option(HOLDFAST_WITH_FUZZ "Link the fuzz targets with libFuzzer (clang only)" OFF)
set(HOLDFAST_SANITIZE "" CACHE STRING "Sanitizers: empty, 'address,undefined' or 'thread'")

# ccache and mold are used when present; neither is required.
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
find_program(MOLD_PROGRAM mold)
if(MOLD_PROGRAM)
    add_link_options(-fuse-ld=mold)
endif()

add_library(holdfast_flags INTERFACE)
if(HOLDFAST_DEVELOPER)
    target_compile_options(
        holdfast_flags
        INTERFACE -Wall
                  -Wextra
                  -Wpedantic
                  -Wconversion
                  -Wshadow
                  -Wnon-virtual-dtor
                  -Wold-style-cast
                  -Wimplicit-fallthrough
                  -Wundef
                  -Werror)
endif()
if(HOLDFAST_SANITIZE)
    add_compile_options(-fsanitize=${HOLDFAST_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
    add_link_options(-fsanitize=${HOLDFAST_SANITIZE})
endif()

# Tests of several builds run as one ctest project (./dev test): the name says which build failed.
if(HOLDFAST_SANITIZE MATCHES thread)
    set(HOLDFAST_TEST_PREFIX tsan.)
elseif(HOLDFAST_SANITIZE)
    set(HOLDFAST_TEST_PREFIX asan.)
else()
    set(HOLDFAST_TEST_PREFIX "")
endif()

function(holdfast_summary)
    message(STATUS "Holdfast ${PROJECT_VERSION}: developer=${HOLDFAST_DEVELOPER} torch=${HOLDFAST_WITH_TORCH} "
                   "tests=${HOLDFAST_WITH_TESTS} bench=${HOLDFAST_WITH_BENCH} sanitize='${HOLDFAST_SANITIZE}'")
endfunction()
