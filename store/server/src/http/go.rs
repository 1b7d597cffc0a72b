//! The series of Go's runtime, which dashboards of etcd show. There is no such runtime here: what
//! means the same of this process is told, all else is zero.
//!
//! Input: the number of threads, and the runtime of this task. Output: lines in the Prometheus text
//! format.

use std::fmt::Write as _;

use super::process::line;
use crate::metrics::COMPILER;

/// Name, kind and help of what stays at zero.
#[rustfmt::skip]
const ZERO: &[(&str, &str, &str)] = &[
    ("go_gc_gogc_percent", "gauge", "Heap size target percentage configured by the user, otherwise 100. This value is set by the GOGC environment variable, and the runtime/debug.SetGCPercent function. Sourced from /gc/gogc:percent."),
    ("go_gc_gomemlimit_bytes", "gauge", "Go runtime memory limit configured by the user, otherwise math.MaxInt64. This value is set by the GOMEMLIMIT environment variable, and the runtime/debug.SetMemoryLimit function. Sourced from /gc/gomemlimit:bytes."),
    ("go_memstats_alloc_bytes", "gauge", "Number of bytes allocated in heap and currently in use. Equals to /memory/classes/heap/objects:bytes."),
    ("go_memstats_alloc_bytes_total", "counter", "Total number of bytes allocated in heap until now, even if released already. Equals to /gc/heap/allocs:bytes."),
    ("go_memstats_buck_hash_sys_bytes", "gauge", "Number of bytes used by the profiling bucket hash table. Equals to /memory/classes/profiling/buckets:bytes."),
    ("go_memstats_frees_total", "counter", "Total number of heap objects frees. Equals to /gc/heap/frees:objects + /gc/heap/tiny/allocs:objects."),
    ("go_memstats_gc_sys_bytes", "gauge", "Number of bytes used for garbage collection system metadata. Equals to /memory/classes/metadata/other:bytes."),
    ("go_memstats_heap_alloc_bytes", "gauge", "Number of heap bytes allocated and currently in use, same as go_memstats_alloc_bytes. Equals to /memory/classes/heap/objects:bytes."),
    ("go_memstats_heap_idle_bytes", "gauge", "Number of heap bytes waiting to be used. Equals to /memory/classes/heap/released:bytes + /memory/classes/heap/free:bytes."),
    ("go_memstats_heap_inuse_bytes", "gauge", "Number of heap bytes that are in use. Equals to /memory/classes/heap/objects:bytes + /memory/classes/heap/unused:bytes"),
    ("go_memstats_heap_objects", "gauge", "Number of currently allocated objects. Equals to /gc/heap/objects:objects."),
    ("go_memstats_heap_released_bytes", "gauge", "Number of heap bytes released to OS. Equals to /memory/classes/heap/released:bytes."),
    ("go_memstats_heap_sys_bytes", "gauge", "Number of heap bytes obtained from system. Equals to /memory/classes/heap/objects:bytes + /memory/classes/heap/unused:bytes + /memory/classes/heap/released:bytes + /memory/classes/heap/free:bytes."),
    ("go_memstats_last_gc_time_seconds", "gauge", "Number of seconds since 1970 of last garbage collection."),
    ("go_memstats_mallocs_total", "counter", "Total number of heap objects allocated, both live and gc-ed. Semantically a counter version for go_memstats_heap_objects gauge. Equals to /gc/heap/allocs:objects + /gc/heap/tiny/allocs:objects."),
    ("go_memstats_mcache_inuse_bytes", "gauge", "Number of bytes in use by mcache structures. Equals to /memory/classes/metadata/mcache/inuse:bytes."),
    ("go_memstats_mcache_sys_bytes", "gauge", "Number of bytes used for mcache structures obtained from system. Equals to /memory/classes/metadata/mcache/inuse:bytes + /memory/classes/metadata/mcache/free:bytes."),
    ("go_memstats_mspan_inuse_bytes", "gauge", "Number of bytes in use by mspan structures. Equals to /memory/classes/metadata/mspan/inuse:bytes."),
    ("go_memstats_mspan_sys_bytes", "gauge", "Number of bytes used for mspan structures obtained from system. Equals to /memory/classes/metadata/mspan/inuse:bytes + /memory/classes/metadata/mspan/free:bytes."),
    ("go_memstats_next_gc_bytes", "gauge", "Number of heap bytes when next garbage collection will take place. Equals to /gc/heap/goal:bytes."),
    ("go_memstats_other_sys_bytes", "gauge", "Number of bytes used for other system allocations. Equals to /memory/classes/other:bytes."),
    ("go_memstats_stack_inuse_bytes", "gauge", "Number of bytes obtained from system for stack allocator in non-CGO environments. Equals to /memory/classes/heap/stacks:bytes."),
    ("go_memstats_stack_sys_bytes", "gauge", "Number of bytes obtained from system for stack allocator. Equals to /memory/classes/heap/stacks:bytes + /memory/classes/os-stacks:bytes."),
    ("go_memstats_sys_bytes", "gauge", "Number of bytes obtained from system. Equals to /memory/classes/total:byte."),
];

/// The lines. Tasks are to this runtime what goroutines are to Go's, and its workers are the
/// threads that run them.
pub(super) fn metrics(threads: u64) -> String {
    let runtime = tokio::runtime::Handle::current().metrics();
    let mut text = String::new();
    let name = "go_gc_duration_seconds";
    let help =
        "A summary of the wall-time pause (stop-the-world) duration in garbage collection cycles.";
    // Writing to a string cannot fail.
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} summary");
    for quantile in ["0", "0.25", "0.5", "0.75", "1"] {
        let _ = writeln!(text, "{name}{{quantile=\"{quantile}\"}} 0");
    }
    let _ = writeln!(text, "{name}_sum 0\n{name}_count 0");
    let name = "go_info";
    let _ =
        writeln!(text, "# HELP {name} Information about the Go environment.\n# TYPE {name} gauge");
    let _ = writeln!(text, "{name}{{version=\"{COMPILER}\"}} 1");
    for (name, help, value) in [
        (
            "go_goroutines",
            "Number of goroutines that currently exist.",
            runtime.num_alive_tasks() as f64,
        ),
        (
            "go_sched_gomaxprocs_threads",
            "The current runtime.GOMAXPROCS setting, or the number of operating system threads that can execute user-level Go code simultaneously. Sourced from /sched/gomaxprocs:threads.",
            runtime.num_workers() as f64,
        ),
        ("go_threads", "Number of OS threads created.", threads as f64),
    ] {
        line(&mut text, name, "gauge", help, value);
    }
    for (name, kind, help) in ZERO {
        line(&mut text, name, kind, help, 0.0);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_not_here_is_zero() {
        let text = metrics(5);
        assert!(text.contains("\ngo_threads 5\n"));
        assert!(text.contains("\ngo_memstats_alloc_bytes 0\n"));
        assert!(text.contains("go_info{version=\"rust1."), "{text}");
        assert!(!text.contains("rustunknown"));
    }
}
