//! What is brought into the store, when, and whose answers count.

use super::*;

#[test]
fn every_tenth_series_is_flushed_but_not_again_at_once() {
    let mut book = begun(&[1, 2]);
    let mut orders = Vec::new();
    book.note_sight(2);
    for series in 1..=9 {
        book.has(1, file(series, 7, 0, 1), &mut orders);
    }
    assert_eq!(book.take_jobs(), []);
    // Both give and get two files now: those end.
    for series in 1..=9 {
        book.has(2, file(series, 7, 0, 1), &mut orders);
    }
    book.has(1, file(10, 7, 0, 1), &mut orders);
    book.has(2, file(10, 7, 0, 1), &mut orders);
    assert_eq!(book.take_jobs(), [bring(Some(2), 1, 10, Some(1))]);
    assert!(
        !book.brought(Some(1), 1, &file(10, 7, 0, 1), true),
        "another node was asked"
    );
    book.brought(Some(2), 1, &file(10, 7, 0, 1), true);
    assert_eq!(book.take_jobs(), [accept(10)]);
    assert_eq!((book.flushes(), book.unflushed().count()), (1, 1));
    book.accepted("r", "t", 10, true, &mut orders);
    assert_eq!((book.flushes(), book.unflushed().count()), (0, 0));
    for series in 11..=25 {
        book.has(1, file(series, 7, 0, 1), &mut orders);
        book.has(2, file(series, 7, 0, 1), &mut orders);
    }
    assert_eq!(book.take_jobs(), []);
    book.set_time(Duration::from_secs(600));
    book.has(1, file(26, 7, 0, 1), &mut orders);
    book.has(2, file(26, 7, 0, 1), &mut orders);
    assert_eq!(book.take_jobs().len(), 1);
    // What the store has is given when all nodes are lost.
    book.lose(1, &mut orders);
    book.lose(2, &mut orders);
    book.begin(3, address(3), &mut orders);
    assert_eq!(book.want(3, ("r", "t"), 9), (26, None));
    book.serve_store(vec!["master:1".to_owned()]);
    let (last, series) = book.want(3, ("r", "t"), 9);
    assert_eq!((last, series.unwrap().0), (26, 10));
    book.serve_store(Vec::new());
    book.note_sight(3);
    assert_eq!(book.want(3, ("r", "t"), 9).1.unwrap().0, 10);
}

#[test]
fn what_only_one_node_can_hold_is_flushed_at_once() {
    let mut book = begun(&[1]);
    let mut orders = Vec::new();
    book.await_nodes(2);
    book.has(1, file(1, 7, 0, 2), &mut orders);
    book.has(1, file(1, 7, 1, 2), &mut orders);
    assert_eq!(book.take_jobs(), []);
    // The other node has gone before it has begun.
    book.await_nodes(1);
    book.has(1, file(1, 7, 1, 2), &mut orders);
    // No node sees the store: the master brings the files.
    for gives_up in [false, false, true] {
        let transfers = transfers(&mut book);
        let failed = transfers.iter().rev().find(|(_, file)| file.rank == 1).unwrap();
        assert_eq!(book.brought(None, failed.0, &failed.1, false), gives_up);
    }
    assert_eq!(book.flushes(), 0);
    book.take_jobs();
    // Not again and again.
    book.has(1, file(2, 7, 0, 2), &mut orders);
    book.has(1, file(2, 7, 1, 2), &mut orders);
    assert_eq!(book.take_jobs(), []);
    // But at the end.
    book.flush_all();
    let jobs = transfers(&mut book);
    assert_eq!(jobs.len(), 2, "{jobs:?}");
    for (transfer, file) in jobs.iter().rev() {
        book.brought(None, *transfer, file, true);
    }
    assert_eq!(book.take_jobs(), [accept(2)]);
    orders.clear();
    book.accepted("r", "t", 2, true, &mut orders);
    let safe = MasterSays::Safe {
        run: "r".to_owned(),
        task: "t".to_owned(),
        series: 2,
    };
    assert_eq!(orders, [(1, safe)]);
}

/// What is said late of transfers from lost nodes is no failure of the transfers that follow them.
#[test]
fn late_answers_about_lost_nodes_do_not_count() {
    let mut book = begun(&[1, 2, 3, 4]);
    let mut orders = Vec::new();
    let file = file(1, 7, 0, 1);
    for node in 1..=4 {
        book.has(node, file.clone(), &mut orders);
    }
    book.flush_all();
    assert_eq!(book.take_jobs(), [bring(None, 1, 1, Some(1))]);
    for lost in 1..=3 {
        book.lose(u32::try_from(lost).unwrap(), &mut orders);
        let next = u32::try_from(lost + 1).unwrap();
        assert_eq!(book.take_jobs(), [bring(None, lost + 1, 1, Some(next))]);
        assert!(!book.brought(None, lost, &file, false), "{lost}");
        assert_eq!((book.take_jobs(), book.flushes()), (Vec::new(), 1), "{lost}");
    }
    book.brought(None, 4, &file, true);
    assert_eq!(book.take_jobs(), [accept(1)]);

    // Nor does a node that writes count as one that does not see the store.
    let mut book = begun(&[1, 2, 3]);
    for node in 1..=2 {
        book.has(node, file.clone(), &mut orders);
    }
    book.note_sight(3);
    book.flush_all();
    assert_eq!(book.take_jobs(), [bring(Some(3), 1, 1, Some(1))]);
    book.lose(1, &mut orders);
    assert_eq!(book.take_jobs(), [bring(Some(3), 2, 1, Some(2))]);
    book.brought(Some(3), 1, &file, false);
    assert_eq!(book.take_jobs(), []);
    book.brought(Some(3), 2, &file, true);
    assert_eq!(book.take_jobs(), [accept(1)]);
}
