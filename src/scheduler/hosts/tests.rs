//! Hosts, and what is free there.

use super::*;

fn request(cpus: u32, memory_mb: u64) -> Request {
    Request {
        anywhere: false,
        gpus: 0,
        cpus,
        memory_mb,
    }
}

fn add(hosts: &mut Hosts, name: &str, memory_mb: u64, threads: u32, ranks: &[u32]) {
    let registration = Registration {
        host: name.to_owned(),
        memory_mb,
        threads,
        cores: threads,
        sockets: 1,
        gpus: threads / 4,
        away: false,
    };
    for rank in ranks {
        hosts.add(Rank(*rank), &registration);
        hosts.check().unwrap();
    }
}

fn two(placement: Placement) -> Hosts {
    let mut hosts = Hosts::new(&[1, 2], placement);
    add(&mut hosts, "a", 100, 4, &[1, 2]);
    add(&mut hosts, "b", 50, 8, &[3]);
    hosts
}

#[test]
fn resources_are_taken_and_given_back() {
    let mut hosts = two(Placement::Pack);
    assert_eq!(hosts.find(request(1, 60), Room::Unreserved), Some(0));
    let grant = hosts.take(0, request(2, 60)).unwrap();
    assert_eq!(
        (grant.rank, grant.block.clone(), grant.fragmented),
        (Rank(1), Some(0..2), false)
    );
    hosts.check().unwrap();
    assert_eq!(hosts.find(request(1, 60), Room::Unreserved), None);
    assert_eq!(hosts.find(request(3, 0), Room::Unreserved), Some(1));
    assert_eq!(hosts.most_free_memory(request(0, 0), Room::Unreserved), Some(50));
    hosts.give_back(0, Some(Rank(1)), request(2, 60), grant.block, grant.gpus);
    hosts.check().unwrap();
    assert_eq!(hosts.most_free_memory(request(0, 0), Room::Unreserved), Some(100));
    assert_eq!(
        hosts.take(0, request(1, 0)).unwrap().rank,
        Rank(1),
        "the slot that was used last"
    );
}

#[test]
fn a_host_without_free_slot_is_not_found() {
    let mut hosts = two(Placement::Pack);
    hosts.take(1, request(0, 0)).unwrap();
    assert_eq!(hosts.find(request(5, 0), Room::Unreserved), None);
    assert_eq!(hosts.most_free_memory(request(5, 0), Room::Unreserved), None);
    assert_eq!(hosts.free_slots(), 2);
    hosts.check().unwrap();
}

#[test]
fn packing_and_spreading_choose_by_free_cpus() {
    assert_eq!(
        two(Placement::Pack).find(request(1, 0), Room::Unreserved),
        Some(0)
    );
    assert_eq!(
        two(Placement::Spread).find(request(1, 0), Room::Unreserved),
        Some(1)
    );
    assert_eq!(
        two(Placement::Spread).find(request(1, 51), Room::Unreserved),
        Some(0)
    );
}

#[test]
fn requests_above_the_fine_levels_are_exact() {
    let mut hosts = Hosts::new(&[5500, 7000], Placement::Pack);
    add(&mut hosts, "a", 1, 5000, &[1]);
    add(&mut hosts, "b", 1, 6000, &[2]);
    assert_eq!(hosts.find(request(5500, 0), Room::Unreserved), Some(1));
    assert_eq!(hosts.find(request(7000, 0), Room::Unreserved), None);
}

#[test]
fn hosts_come_and_go() {
    let mut hosts = Hosts::new(&[4000], Placement::Pack);
    assert_eq!(hosts.find(request(0, 0), Room::Unreserved), None);
    for (host, threads) in [("a", 2), ("b", 700), ("c", 3), ("d", 4000)] {
        let rank = threads;
        add(&mut hosts, host, 10, threads, &[rank]);
        assert_eq!(
            hosts.find(request(threads, 10), Room::Unreserved),
            Some(hosts.all().len() as u32 - 1)
        );
    }
    assert!(hosts.remove(1, Rank(700)), "its only worker");
    hosts.check().unwrap();
    assert_eq!(hosts.find(request(700, 10), Room::Unreserved), Some(3));
    assert_eq!(hosts.find(request(3, 10), Room::Unreserved), Some(2));
    add(&mut hosts, "b", 20, 1, &[5000]);
    assert_eq!((hosts.get(1).cpus, hosts.get(1).memory_mb), (1, 20));
    hosts.withhold(1, Rank(5000));
    hosts.check().unwrap();
    assert_eq!(hosts.find(request(1, 20), Room::Unreserved), None);
    hosts.offer(1, Rank(5000));
    hosts.check().unwrap();
    assert_eq!(hosts.find(request(1, 20), Room::Unreserved), Some(1));
}

#[test]
fn tasks_that_need_the_directory_run_on_hosts_that_see_it() {
    let mut hosts = two(Placement::Spread);
    let anywhere = |cpus| Request {
        anywhere: true,
        ..request(cpus, 0)
    };
    let away = |host: &str, threads| Registration {
        host: host.to_owned(),
        memory_mb: 200,
        threads,
        cores: threads,
        sockets: 1,
        gpus: 2,
        away: true,
    };
    assert_eq!(hosts.add(Rank(4), &away("c", 16)), (2, true));
    hosts.check().unwrap();
    assert_eq!(
        (
            hosts.find(request(1, 0), Room::Unreserved),
            hosts.find(anywhere(1), Room::Unreserved)
        ),
        (Some(1), Some(2))
    );
    assert_eq!(hosts.most_free_memory(request(1, 0), Room::Unreserved), Some(100));
    assert_eq!(hosts.most_free_memory(anywhere(1), Room::Unreserved), Some(200));
    assert_eq!(hosts.find(request(9, 0), Room::Unreserved), None);
    let on_gpu = |request: Request| Request { gpus: 1, ..request };
    assert_eq!(
        hosts.most_free_memory(on_gpu(request(9, 0)), Room::Unreserved),
        None
    );
    assert_eq!(hosts.find(on_gpu(anywhere(9)), Room::Unreserved), Some(2));
    // One worker that does not see it makes its host one that does not.
    hosts.add(Rank(5), &away("b", 8));
    hosts.check().unwrap();
    assert_eq!(hosts.find(request(5, 0), Room::Unreserved), None);
    assert!(!hosts.get(1).could_take(request(5, 0)) && hosts.get(1).could_take(anywhere(5)));
    hosts.take(0, request(1, 0)).unwrap();
    hosts.take(2, anywhere(1)).unwrap();
    hosts.check().unwrap();
}

#[test]
fn a_running_task_keeps_its_numbers() {
    let mut hosts = two(Placement::Pack);
    let held = |cpus: &[u32], gpus: &[u32]| Adoption {
        task: pmc_dag::TaskId(0),
        submit: crate::protocol::SubmitId(1),
        cpus: cpus.to_vec(),
        gpus: gpus.to_vec(),
    };
    let wanted = Request {
        gpus: 1,
        ..request(2, 10)
    };
    let grant = hosts.adopt(1, Rank(3), wanted, &held(&[4, 5], &[1])).unwrap();
    assert_eq!(grant.block, Some(4..6));
    assert_eq!(grant.gpus.numbers().collect::<Vec<_>>(), [1]);
    hosts.check().unwrap();
    assert!(hosts.adopt(0, Rank(1), request(5, 0), &held(&[], &[])).is_none());
    let unknown = hosts.adopt(0, Rank(1), wanted, &held(&[9, 7], &[77])).unwrap();
    assert_eq!((unknown.block, unknown.gpus.len()), (None, 1));
    let narrow = hosts.adopt(0, Rank(2), request(1, 0), &held(&[3], &[])).unwrap();
    assert_eq!(narrow.block, None, "one CPU has no number");
    hosts.check().unwrap();
}
