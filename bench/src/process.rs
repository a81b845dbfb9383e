//! What processes cost: CPU time, resident memory, and how much of the machine others use.
//!
//! CPU time comes from `schedstat`, in nanoseconds; the tick counters of `/proc/stat` are off by a
//! whole core on some virtual machines. What others use is the machine's total less our own.

use std::fs;
use std::path::Path;

/// CPU nanoseconds that all living threads of a process have run.
pub fn cpu_ns(pid: u32) -> u64 {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return 0 };
    tasks.flatten().map(|task| schedstat(&task.path()).0).sum()
}

/// CPU nanoseconds of one of our own threads.
pub fn thread_cpu_ns(tid: i32) -> u64 {
    schedstat(Path::new(&format!("/proc/self/task/{tid}"))).0
}

fn schedstat(task: &Path) -> (u64, u64) {
    let text = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
    let mut numbers = text.split_ascii_whitespace().map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Resident memory of a process in KiB.
pub fn rss_kib(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    line.and_then(|l| l.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// A process and those that it started, such as the workers of nginx.
pub fn with_children(pid: u32) -> Vec<u32> {
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        next += 1;
        let Ok(tasks) = fs::read_dir(format!("/proc/{parent}/task")) else { continue };
        for task in tasks.flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            found.extend(children.split_ascii_whitespace().filter_map(|c| c.parse::<u32>().ok()));
        }
    }
    found
}

/// CPU nanoseconds of the whole machine, ended processes included, where the kernel counts them exactly.
pub fn machine_cpu_ns() -> Option<u64> {
    if let Ok(text) = fs::read_to_string("/sys/fs/cgroup/cpuacct/cpuacct.usage") {
        return text.trim().parse().ok();
    }
    let text = fs::read_to_string("/sys/fs/cgroup/cpu.stat").ok()?;
    let usage = text.lines().find_map(|l| l.strip_prefix("usage_usec "))?;
    usage.trim().parse::<u64>().ok().map(|us| us * 1_000)
}

/// Model name of the processor and how many cores are on-line.
pub fn machine() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|l| l.strip_prefix("model name")).unwrap_or(":unknown");
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let n = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{n} × {}, Linux {}", model.trim_start_matches([' ', '\t', ':']), kernel.trim())
}

/// Raises the limit on descriptors to what the machine allows, and gives it.
pub fn raise_descriptor_limit() -> u64 {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return 0 };
    if setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok() { hard } else { soft }
}

/// CPU nanoseconds of the kernel's threads for network interrupts: they work for our own traffic.
pub fn softirq_cpu_ns() -> u64 {
    let Ok(all) = fs::read_dir("/proc") else { return 0 };
    let is_softirq = |p: &Path| fs::read_to_string(p.join("comm")).is_ok_and(|c| c.starts_with("ksoftirqd/"));
    all.flatten().map(|e| e.path()).filter(|p| is_softirq(p)).map(|p| schedstat(&p).0).sum()
}
