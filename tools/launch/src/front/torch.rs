//! Where the ranks of PyTorch meet, for `--set torch`.

use std::io;
use std::net::TcpListener;

use crate::frames::Bytes;

const ADDRESS: &str = "MASTER_ADDR";
const PORT: &str = "MASTER_PORT";

/// Sets the address at which the first rank listens, and a port. In a task, `first` is its host; elsewhere,
/// all ranks are on this machine, and a port that is set stays.
///
/// # Errors
/// No port is free.
pub(super) fn set_address(environment: &mut Vec<Bytes>, first: Option<&str>) -> io::Result<()> {
    set(environment, ADDRESS, first.unwrap_or("127.0.0.1"));
    if first.is_none() && environment.iter().any(|variable| is_of(variable, PORT)) {
        return Ok(());
    }
    // Launches at once have different ones. What is free here is most likely free there.
    let listener = TcpListener::bind(("0.0.0.0", 0))?;
    let port = listener.local_addr()?.port().to_string();
    set(environment, PORT, &port);
    Ok(())
}

fn is_of(variable: &Bytes, name: &str) -> bool {
    let rest = variable.0.strip_prefix(name.as_bytes());
    rest.is_some_and(|rest| rest.starts_with(b"="))
}

fn set(environment: &mut Vec<Bytes>, name: &str, value: &str) {
    environment.retain(|variable| !is_of(variable, name));
    environment.push(Bytes(format!("{name}={value}").into_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(given: &[&str], first: Option<&str>) -> Vec<String> {
        let given = given.iter().map(|text| Bytes(text.as_bytes().to_vec()));
        let mut environment = given.collect();
        set_address(&mut environment, first).unwrap();
        let text = |variable: Bytes| String::from_utf8(variable.0).unwrap();
        environment.into_iter().map(text).collect()
    }

    #[test]
    fn ranks_meet_at_the_host_of_the_first_one() {
        let task = of(&["A=1", "MASTER_ADDR=n1", "MASTER_PORT=1"], Some("n2"));
        assert_eq!(task[..2], ["A=1", "MASTER_ADDR=n2"]);
        let port = task[2].strip_prefix("MASTER_PORT=").unwrap();
        assert!(task.len() == 3 && port.parse::<u16>().unwrap() > 1, "{port}");
        let here = of(&["MASTER_PORT=29500"], None);
        assert_eq!(here, ["MASTER_PORT=29500", "MASTER_ADDR=127.0.0.1"]);
        assert_eq!(of(&["MASTER_PORTS=1"], None).len(), 3);
    }
}
