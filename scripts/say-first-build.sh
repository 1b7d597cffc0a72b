#!/usr/bin/env bash
# Says how long the first build takes, when RocksDB has not been compiled into $1 yet.
if ! ls "$1"/build/librocksdb-sys-*/out/librocksdb.a >/dev/null 2>&1; then
    echo "The first build compiles RocksDB: about 25 minutes on two cores. Later builds take seconds to minutes."
fi
