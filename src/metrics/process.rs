//! Metrics of the process itself: memory, descriptors, processor time, version.
//!
//! Read from the kernel when somebody asks. Where it doesn't tell (no `/proc`), a value stays at zero.

use std::fmt::Write;
use std::fs;

use metrics::{Counter, Gauge};
use rustix::process::{Resource, getrlimit};

use super::Registry;
use crate::clock::Now;

/// The kernel's unit of processor time towards programs, on every architecture.
const TICKS_PER_SECOND: f64 = 100.0;

/// All but the reloads is read by nobody but [`ProcessMetrics::collect`] and [`ProcessMetrics::render_processor`].
pub struct ProcessMetrics {
    memory: Gauge,
    descriptors: Gauge,
    max_descriptors: Gauge,
    processor_name: String,
    /// Configurations that were taken over while running.
    pub reloads: Counter,
    /// Configurations that had problems and changed nothing.
    pub refused_reloads: Counter,
}

impl ProcessMetrics {
    pub(super) fn register(registry: &Registry<'_>) -> Self {
        let gauge = |name, help| registry.gauge(name, help, &[]);
        let started = gauge("process_start_time_seconds", "When the process started, in Unix time.");
        started.set(Now::read().unix_ms() as f64 / 1e3);
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        registry.gauge("build_info", "Always 1; the label tells what runs.", &version).set(1.0);
        let reloads = |outcome| {
            let help = "Configurations read again while running, by outcome.";
            registry.counter("config_reloads_total", help, &[("outcome", outcome)])
        };
        let process = Self {
            memory: gauge("process_resident_memory_bytes", "Memory that the process occupies."),
            descriptors: gauge("process_open_fds", "Open descriptors."),
            max_descriptors: gauge("process_max_fds", "Descriptors that the process may open."),
            processor_name: registry.name("process_cpu_seconds_total").as_str().to_owned(),
            reloads: reloads("applied"),
            refused_reloads: reloads("refused"),
        };
        process.collect();
        process
    }

    pub(super) fn collect(&self) {
        if let Ok(status) = fs::read_to_string("/proc/self/status") {
            self.memory.set(resident_bytes(&status).unwrap_or(0) as f64);
        }
        self.descriptors.set(open_descriptors() as f64);
        self.max_descriptors.set(getrlimit(Resource::Nofile).current.map_or(f64::INFINITY, |n| n as f64));
    }

    /// Appends the processor time. The recorder's counters are whole numbers, and this one's unit is the second, as
    /// Prometheus has it.
    pub(super) fn render_processor(&self, out: &mut String) {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let (name, seconds) = (&self.processor_name, processor_seconds(&stat).unwrap_or(0.0));
        let _ = writeln!(out, "# HELP {name} Processor time used, user and system together.");
        let _ = writeln!(out, "# TYPE {name} counter\n{name} {seconds}\n");
    }
}

fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

fn open_descriptors() -> u64 {
    // The size of the folder is their number on Linux 6.2 and later; listing many thousand takes milliseconds.
    match fs::metadata("/proc/self/fd").map(|folder| folder.len()) {
        Ok(0) | Err(_) => fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64),
        Ok(n) => n,
    }
}

fn processor_seconds(stat: &str) -> Option<f64> {
    // The name stands in brackets and may hold blanks and brackets itself.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some((user + system) as f64 / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn the_process_tells_of_itself() {
        let held: Vec<_> = (0..50).map(|_| fs::File::open("/dev/null").expect("it is everywhere")).collect();
        let text = Metrics::new("t").render();
        let value = |name: &str| -> f64 {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("t_{name} ")));
            line.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse().expect("a number")
        };
        assert!(value("process_resident_memory_bytes") > 1e6);
        let (open, most) = (value("process_open_fds"), value("process_max_fds"));
        assert!(open >= held.len() as f64 && open < most, "{open} of {most}");
        assert!(value("process_start_time_seconds") > 1.7e9);
        assert!((0.0..3_600.0).contains(&value("process_cpu_seconds_total")));
        assert!(text.contains("# TYPE t_process_cpu_seconds_total counter\n"));
        assert!(text.contains(concat!("t_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1")));
    }

    #[test]
    fn the_kernels_texts_are_read_as_it_writes_them() {
        assert_eq!(resident_bytes("Name:\ta\nVmRSS:\t    2048 kB\n"), Some(2_097_152));
        let stat = "1 (a) b) S 1 1 1 0 -1 4194560 1 0 0 0 250 51 0 0 20 0 1 0 100 1 1";
        assert_eq!(processor_seconds(stat), Some(3.01));
        assert_eq!((resident_bytes("Name:\ta\n"), processor_seconds("1 (a")), (None, None));
    }
}
