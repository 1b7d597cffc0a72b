//! What the process uses, as Go programs tell it on their metrics page.
//!
//! Input: `/proc`. Output: lines in the Prometheus text format. They are read when somebody asks,
//! and belong to the process and not to one member, so they are in no registry.

use std::fmt::Write as _;
use std::fs;

/// Ticks of a second in `/proc`, the same on all Linux machines.
const TICKS: f64 = 100.0;

/// The lines, as far as the system tells.
pub(super) fn metrics() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let open = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let used = Used::read(
        &read("/proc/self/stat"),
        &read("/proc/self/status"),
        &read("/proc/self/limits"),
        &read("/proc/stat"),
        &read("/proc/self/net/netstat"),
    );
    used.show(open) + &super::go::metrics(used.threads)
}

/// One number with what is said about it.
pub(super) fn line(text: &mut String, name: &str, kind: &str, help: &str, value: f64) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
}

#[derive(Debug, Default, PartialEq)]
struct Used {
    cpu_seconds: f64,
    start_seconds: f64,
    virtual_bytes: u64,
    resident_bytes: u64,
    max_files: u64,
    max_virtual_bytes: f64,
    threads: u64,
    received_bytes: u64,
    sent_bytes: u64,
}

impl Used {
    fn read(stat: &str, status: &str, limits: &str, system: &str, network: &str) -> Self {
        // The name of the command may hold anything; behind its bracket are numbers.
        let fields: Vec<&str> =
            stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split_whitespace().collect();
        // Numbered from the third field on in proc(5).
        let field = |number: usize| -> f64 {
            fields.get(number - 3).and_then(|field| field.parse().ok()).unwrap_or_default()
        };
        let line = |text: &str, name: &str| -> Option<u64> {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse().ok()
        };
        let kib = |name| line(status, name).unwrap_or_default() * 1024;
        // Unlimited is what Go makes of it: the largest number.
        let most = line(limits, "Max address space").map_or(u64::MAX as f64, |most| most as f64);
        let booted = line(system, "btime ").unwrap_or_default();
        Self {
            cpu_seconds: (field(14) + field(15)) / TICKS,
            start_seconds: booted as f64 + field(22) / TICKS,
            virtual_bytes: kib("VmSize:"),
            resident_bytes: kib("VmRSS:"),
            max_files: line(limits, "Max open files").unwrap_or_default(),
            max_virtual_bytes: most,
            threads: line(status, "Threads:").unwrap_or_default(),
            received_bytes: octets(network, "InOctets"),
            sent_bytes: octets(network, "OutOctets"),
        }
    }

    fn show(&self, open_files: usize) -> String {
        let open_files = open_files as f64;
        let max_files = self.max_files as f64;
        let mut text = String::new();
        for (name, kind, help, value) in [
            ("os_fd_limit", "gauge", "The file descriptor limit.", max_files),
            ("os_fd_used", "gauge", "The number of used file descriptors.", open_files),
            (
                "process_cpu_seconds_total",
                "counter",
                "Total user and system CPU time spent in seconds.",
                self.cpu_seconds,
            ),
            ("process_max_fds", "gauge", "Maximum number of open file descriptors.", max_files),
            ("process_open_fds", "gauge", "Number of open file descriptors.", open_files),
            (
                "process_resident_memory_bytes",
                "gauge",
                "Resident memory size in bytes.",
                self.resident_bytes as f64,
            ),
            (
                "process_start_time_seconds",
                "gauge",
                "Start time of the process since unix epoch in seconds.",
                self.start_seconds,
            ),
            (
                "process_virtual_memory_bytes",
                "gauge",
                "Virtual memory size in bytes.",
                self.virtual_bytes as f64,
            ),
            (
                "process_virtual_memory_max_bytes",
                "gauge",
                "Maximum amount of virtual memory available in bytes.",
                self.max_virtual_bytes,
            ),
            (
                "process_network_receive_bytes_total",
                "counter",
                "Number of bytes received by the process over the network.",
                self.received_bytes as f64,
            ),
            (
                "process_network_transmit_bytes_total",
                "counter",
                "Number of bytes sent by the process over the network.",
                self.sent_bytes as f64,
            ),
        ] {
            line(&mut text, name, kind, help, value);
        }
        text
    }
}

/// A count of the machine, or of the container that the process is in: a line of names, and below
/// it one of numbers.
fn octets(network: &str, name: &str) -> u64 {
    let mut lines = network.lines().filter_map(|line| line.strip_prefix("IpExt: "));
    let (names, numbers) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let mut pairs = names.split_whitespace().zip(numbers.split_whitespace());
    pairs.find(|(found, _)| *found == name).and_then(|(_, n)| n.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn proc_is_read() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 8 0 1000 99 1";
        let status = "Name:\ta\nVmSize:\t    2048 kB\nVmRSS:\t     100 kB\nThreads:\t9\n";
        let limits = "Limit  Soft  Hard\nMax open files            1024   4096   files\n\
                      Max address space         unlimited unlimited bytes\n";
        let network = "TcpExt: A\nTcpExt: 1\nIpExt: B InOctets OutOctets\nIpExt: 7 8 9\n";
        let used = Used::read(stat, status, limits, "cpu 1 2\nbtime 1700000000\n", network);
        let expected = Used {
            cpu_seconds: 2.0,
            start_seconds: 1_700_000_010.0,
            virtual_bytes: 2 << 20,
            resident_bytes: 100 << 10,
            max_files: 1024,
            max_virtual_bytes: u64::MAX as f64,
            threads: 9,
            received_bytes: 8,
            sent_bytes: 9,
        };
        assert_eq!(used, expected);
        assert!(used.show(12).contains("\nprocess_open_fds 12\n"));
        assert!(metrics().contains("process_resident_memory_bytes"));
    }
}
