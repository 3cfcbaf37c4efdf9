//! The processor time of another process.

/// Seconds that process `pid` and its threads have computed so far.
pub fn used(pid: Option<u32>) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid?)).ok()?;
    // The name is in brackets and may hold spaces; user and system time are the 12th and 13th field after it.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let (user, system): (f64, f64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    // USER_HZ is 100 on every Linux that this runs on.
    Some((user + system) / 100.0)
}
