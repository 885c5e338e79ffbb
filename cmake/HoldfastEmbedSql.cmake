# SPDX-License-Identifier: Apache-2.0
# Turns schema/NNNN_name.sql into a C++ source that defines holdfast::store::shipped_migrations().
# Run as: cmake -DSCHEMA_DIR=… -DOUTPUT=… -P HoldfastEmbedSql.cmake
file(GLOB scripts ${SCHEMA_DIR}/*.sql)
list(SORT scripts)
set(rows "")
set(expected 1)
foreach(script IN LISTS scripts)
    get_filename_component(stem ${script} NAME_WE)
    if(NOT stem MATCHES "^([0-9][0-9][0-9][0-9])_([a-z0-9_]+)$")
        message(FATAL_ERROR "${script}: migrations are named NNNN_name.sql")
    endif()
    set(digits ${CMAKE_MATCH_1})
    set(name ${CMAKE_MATCH_2})
    math(EXPR version "1${digits} - 10000")
    if(NOT version EQUAL expected)
        message(FATAL_ERROR "${script}: expected version ${expected}")
    endif()
    math(EXPR expected "${expected} + 1")
    file(READ ${script} text)
    # A string literal is limited to 64 KiB by the standard's recommendation; pieces are joined by the compiler.
    string(LENGTH "${text}" left)
    set(pieces "")
    set(at 0)
    while(at LESS left)
        string(SUBSTRING "${text}" ${at} 8000 piece)
        string(APPEND pieces "R\"holdsql(${piece})holdsql\"\n")
        math(EXPR at "${at} + 8000")
    endwhile()
    string(APPEND rows "    {${version}, \"${name}\",\n${pieces}},\n")
endforeach()
if(rows STREQUAL "")
    set(body "    return {};\n")
else()
    set(body "    static constexpr Migration kMigrations[] = {\n${rows}    };\n    return kMigrations;\n")
endif()
file(
    WRITE ${OUTPUT}
    "// Made from schema/*.sql by cmake/HoldfastEmbedSql.cmake; do not edit.\n#include <holdfast/store.hpp>\n\n"
    "namespace holdfast::store {\n\nstd::span<const Migration> shipped_migrations() {\n${body}}\n\n"
    "}  // namespace holdfast::store\n")
