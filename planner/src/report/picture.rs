//! Pictures of workflows: DOT for Graphviz, or SVG by Graphviz. Without Graphviz, a simple SVG shows groups
//! of jobs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use rustc_hash::FxHashMap;

use crate::exec::{Exec, Task};
use crate::graph::{Graph, by_depth};
use crate::ids::Id;
use crate::model::Workflow;
use crate::request::{Format, Subject};

/// Maximum jobs that are drawn one by one. Larger workflows are drawn as groups: jobs of one level with one
/// transformation.
const MAX_SINGLE_JOBS: usize = 300;
/// Height of a box.
const BOX_HEIGHT: f64 = 34.0;
/// Distance between the tops of two levels.
const LEVEL_HEIGHT: f64 = 78.0;
/// Distance between two boxes of a level.
const GAP: f64 = 14.0;
/// Maximum space to the right of the boxes for arrows that pass levels.
const MAX_BULGE: f64 = 160.0;
/// Space above the boxes for title and legend.
const HEADER: f64 = 50.0;
/// Width of an entry of the legend.
const LEGEND_WIDTH: f64 = 110.0;

/// Kinds of jobs and their colors.
const KINDS: &[(&str, &str)] = &[
    ("compute", "#cfe8cf"),
    ("stage-in-tx", "#f6dfb8"),
    ("stage-out-tx", "#f3c9a5"),
    ("inter-site-tx", "#f7efb2"),
    ("registration", "#d9cfee"),
    ("create-dir", "#cddff2"),
    ("cleanup", "#e0e0e0"),
    ("chmod", "#e8f0f8"),
];

/// A job to be drawn.
#[derive(Clone, Debug)]
struct Job {
    label: String,
    transformation: String,
    kind: &'static str,
}

/// A box: one job or a group.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    label: String,
    jobs: u32,
    kind: &'static str,
}

/// Boxes and arrows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Drawing {
    title: String,
    nodes: Vec<Node>,
    /// From, to, number of dependencies.
    edges: Vec<(u32, u32, u32)>,
}

/// Draws a workflow.
pub(crate) fn draw(workflow: &Workflow, exec: &Exec, subject: Subject, format: Format) -> String {
    let (title, jobs, edges) = match subject {
        Subject::Abstract => (
            format!("{}: abstract workflow", workflow.label),
            abstract_jobs(workflow),
            numbers(&workflow.edges),
        ),
        Subject::Executable => (
            format!("{}: executable workflow", workflow.label),
            executable_jobs(workflow, exec),
            numbers(&exec.edges),
        ),
    };
    let drawing = || match jobs.len() {
        0..=MAX_SINGLE_JOBS => Drawing::of_jobs(title.clone(), &jobs, &edges),
        _ => Drawing::of_groups(title.clone(), &jobs, &edges),
    };
    match format {
        Format::Dot => drawing().dot(),
        Format::Svg => {
            render(&drawing().dot()).unwrap_or_else(|| Drawing::of_groups(title.clone(), &jobs, &edges).svg())
        }
    }
}

/// Returns edges as plain numbers: of jobs of either workflow.
fn numbers<I: Id>(edges: &[(I, I)]) -> Vec<(u32, u32)> {
    let plain = |id: I| u32::new(id.index());
    edges.iter().map(|&(p, c)| (plain(p), plain(c))).collect()
}

fn abstract_jobs(workflow: &Workflow) -> Vec<Job> {
    let jobs = workflow.jobs.iter().map(|job| Job {
        label: format!("{}\n{}", job.id, job.transformation),
        transformation: job.transformation.to_string(),
        kind: "compute",
    });
    jobs.collect()
}

fn executable_jobs(workflow: &Workflow, exec: &Exec) -> Vec<Job> {
    let jobs = exec.jobs.iter().map(|job| Job {
        label: job.name.to_string(),
        transformation: match job.task {
            Task::Compute(n) => workflow.jobs[n].transformation.to_string(),
            task => task.transformation().to_owned(),
        },
        kind: job.task.kind().1,
    });
    jobs.collect()
}

/// Runs Graphviz. Returns `None` if it is missing or fails.
fn render(dot: &str) -> Option<String> {
    let mut graphviz = Command::new("dot")
        .arg("-Tsvg")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    // Graphviz reads all of its input before it writes. A broken pipe shows in its exit status.
    let _ = graphviz.stdin.take()?.write_all(dot.as_bytes());
    let output = graphviz.wait_with_output().ok()?;
    let svg = output.status.success().then_some(output.stdout)?;
    String::from_utf8(svg).ok()
}

fn color(kind: &str) -> &'static str {
    let known = KINDS.iter().find(|(name, _)| *name == kind);
    known.map_or("#ffffff", |(_, color)| *color)
}

impl Drawing {
    /// Draws one box for each job.
    fn of_jobs(title: String, jobs: &[Job], edges: &[(u32, u32)]) -> Self {
        let nodes = jobs.iter().map(|job| Node {
            label: job.label.clone(),
            jobs: 1,
            kind: job.kind,
        });
        Drawing {
            title,
            nodes: nodes.collect(),
            edges: edges.iter().map(|&(p, c)| (p, c, 1)).collect(),
        }
    }

    /// Draws one box for the jobs of a level with one transformation.
    fn of_groups(title: String, jobs: &[Job], edges: &[(u32, u32)]) -> Self {
        let graph = Graph::new(jobs.len(), edges);
        let depths = graph.depths(&graph.topological().unwrap_or_default());
        let mut numbers: FxHashMap<(u32, &str, &str), u32> = FxHashMap::default();
        let mut nodes: Vec<Node> = Vec::new();
        let mut groups = Vec::with_capacity(jobs.len());
        for (job, &depth) in jobs.iter().zip(&depths) {
            let group = *numbers
                .entry((depth, &job.transformation, job.kind))
                .or_insert_with(|| {
                    nodes.push(Node {
                        label: job.transformation.clone(),
                        jobs: 0,
                        kind: job.kind,
                    });
                    (nodes.len() - 1) as u32
                });
            nodes[group as usize].jobs += 1;
            groups.push(group);
        }
        let mut counts: BTreeMap<(u32, u32), u32> = BTreeMap::new();
        for &(p, c) in edges {
            *counts
                .entry((groups[p as usize], groups[c as usize]))
                .or_default() += 1;
        }
        for node in nodes.iter_mut().filter(|node| node.jobs > 1) {
            let _ = write!(node.label, "\n{} jobs", node.jobs);
        }
        Drawing {
            title,
            nodes,
            edges: counts.into_iter().map(|((p, c), count)| (p, c, count)).collect(),
        }
    }

    fn dot(&self) -> String {
        let quoted = |text: &str| {
            let escaped = pmc_terminal::escape(text)
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            format!("\"{escaped}\"")
        };
        let mut text = format!(
            "digraph workflow {{\n  label={};\n  labelloc=t;\n  node [shape=box, style=\"filled,rounded\", \
             fontname=\"sans-serif\"];\n",
            quoted(&self.title)
        );
        // Writing into a String cannot fail.
        for (n, node) in self.nodes.iter().enumerate() {
            let _ = writeln!(
                text,
                "  n{n} [label={}, fillcolor=\"{}\", tooltip=\"{}\"];",
                quoted(&node.label),
                color(node.kind),
                node.kind
            );
        }
        for (from, to, count) in &self.edges {
            let _ = match count {
                1 => writeln!(text, "  n{from} -> n{to};"),
                _ => writeln!(text, "  n{from} -> n{to} [label=\"{count}\", penwidth=2];"),
            };
        }
        text.push_str("}\n");
        text
    }

    /// Returns left edge, top and width of each box: one centred row for each level.
    fn boxes(&self) -> Vec<(f64, f64, f64)> {
        let pairs: Vec<(u32, u32)> = self.edges.iter().map(|&(from, to, _)| (from, to)).collect();
        let graph = Graph::new(self.nodes.len(), &pairs);
        let depths = graph.depths(&graph.topological().unwrap_or_default());
        let widths: Vec<f64> = self.nodes.iter().map(|node| width(&node.label)).collect();
        let mut boxes = vec![(0.0, 0.0, 0.0); self.nodes.len()];
        let levels: Vec<Vec<u32>> = by_depth(&depths).into_iter().collect();
        let row = |nodes: &Vec<u32>| nodes.iter().map(|&n| widths[n as usize] + GAP).sum::<f64>();
        let widest = levels.iter().map(row).fold(0.0, f64::max);
        for (level, nodes) in levels.into_iter().enumerate() {
            let mut x = GAP + (widest - row(&nodes)) / 2.0;
            for n in nodes.into_iter().map(|n: u32| n as usize) {
                boxes[n] = (x, HEADER + GAP + level as f64 * LEVEL_HEIGHT, widths[n]);
                x += widths[n] + GAP;
            }
        }
        boxes
    }

    /// Draws the boxes of each level in a row. Arrows to the next level are straight, all others pass the
    /// boxes on the right.
    fn svg(&self) -> String {
        let boxes = self.boxes();
        let kinds = KINDS
            .iter()
            .filter(|(kind, _)| self.nodes.iter().any(|node| node.kind == *kind));
        let legend: Vec<_> = kinds.collect();
        let right = boxes.iter().map(|(x, _, width)| x + width).fold(0.0, f64::max);
        let has_long = self.edges.iter().any(|&(from, to, _)| {
            let ((_, top, _), (_, bottom, _)) = (boxes[from as usize], boxes[to as usize]);
            is_long(top, bottom)
        });
        let margin = if has_long { MAX_BULGE } else { 0.0 };
        let width = (right + margin + GAP).max(400.0_f64.max(legend.len() as f64 * LEGEND_WIDTH + 20.0));
        let height = boxes
            .iter()
            .map(|(_, y, _)| y + BOX_HEIGHT + GAP)
            .fold(HEADER, f64::max);
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"sans-serif\" font-size=\"11\">\n\
             <title>{title}</title>\n<defs><marker id=\"tip\" markerWidth=\"7\" markerHeight=\"7\" refX=\"6\" \
             refY=\"3\" orient=\"auto\"><path d=\"M0,0 L6,3 L0,6 z\" fill=\"#777\"/></marker></defs>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
             <text x=\"10\" y=\"18\" font-size=\"14\" font-weight=\"bold\">{title}</text>\n",
            title = escape(&self.title),
        );
        // Writing into a String cannot fail.
        for (n, (kind, fill)) in legend.into_iter().enumerate() {
            let x = 10.0 + n as f64 * LEGEND_WIDTH;
            let _ = writeln!(
                text,
                "<rect x=\"{x}\" y=\"28\" width=\"12\" height=\"12\" fill=\"{fill}\" stroke=\"#777\"/>\
                 <text x=\"{}\" y=\"38\">{kind}</text>",
                x + 16.0
            );
        }
        for &(from, to, count) in &self.edges {
            let path = arrow(boxes[from as usize], boxes[to as usize], right);
            let _ = writeln!(
                text,
                "<path d=\"{path}\" fill=\"none\" stroke=\"#777\" marker-end=\"url(#tip)\">\
                 <title>{count} dependencies</title></path>",
            );
        }
        for (node, &(x, y, width)) in self.nodes.iter().zip(&boxes) {
            let _ = write!(
                text,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BOX_HEIGHT}\" rx=\"5\" \
                 fill=\"{}\" stroke=\"#555\"/>",
                color(node.kind),
            );
            let lines = node.label.lines().count() as f64;
            for (k, line) in node.label.lines().enumerate() {
                let _ = write!(
                    text,
                    "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                    x + width / 2.0,
                    y + BOX_HEIGHT / 2.0 + 4.0 + (k as f64 - (lines - 1.0) / 2.0) * 13.0,
                    escape(line)
                );
            }
            text.push('\n');
        }
        text.push_str("</svg>\n");
        text
    }
}

/// Returns whether an arrow between boxes with these tops passes a level.
fn is_long(top: f64, bottom: f64) -> bool {
    bottom - top > 1.5 * LEVEL_HEIGHT
}

/// Returns the path of an arrow. `right` is the right edge of all boxes.
fn arrow((x1, y1, width1): (f64, f64, f64), (x2, y2, width2): (f64, f64, f64), right: f64) -> String {
    if !is_long(y1, y2) {
        let (from, to) = (x1 + width1 / 2.0, x2 + width2 / 2.0);
        return format!("M{from:.1},{:.1} L{to:.1},{y2:.1}", y1 + BOX_HEIGHT);
    }
    let levels = (y2 - y1) / LEVEL_HEIGHT;
    // A curve reaches three quarters of the way to its control points.
    let turn = right + (24.0 + 12.0 * levels).min(MAX_BULGE);
    let middle = BOX_HEIGHT / 2.0;
    format!(
        "M{:.1},{:.1} C{turn:.1},{:.1} {turn:.1},{:.1} {:.1},{:.1}",
        x1 + width1,
        y1 + middle,
        y1 + middle,
        y2 + middle,
        x2 + width2,
        y2 + middle
    )
}

/// Returns the approximate width of a box with this label.
fn width(label: &str) -> f64 {
    let longest = label.lines().map(|line| line.chars().count()).max();
    longest.unwrap_or_default() as f64 * 6.4 + 16.0
}

/// Escapes a text for XML and removes characters that XML forbids.
fn escape(text: &str) -> String {
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    quick_xml::escape::escape(text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A job with many children of two transformations.
    fn star(children: u32) -> (Vec<Job>, Vec<(u32, u32)>) {
        let job = |n: u32| Job {
            label: format!("job <{n}>"),
            transformation: format!("run{}", n % 2),
            kind: "compute",
        };
        let jobs = (0..=children).map(job).collect();
        (jobs, (1..=children).map(|n| (0, n)).collect())
    }

    #[test]
    fn jobs_of_one_level_and_transformation_form_a_group() {
        let (jobs, edges) = star(1000);
        let drawing = Drawing::of_groups("a & b".into(), &jobs, &edges);
        let labels: Vec<&str> = drawing.nodes.iter().map(|n| n.label.as_str()).collect();
        assert_eq!(labels, ["run0", "run1\n500 jobs", "run0\n500 jobs"]);
        assert_eq!(drawing.edges, [(0, 1, 500), (0, 2, 500)]);
        assert!(drawing.dot().contains("n0 -> n1 [label=\"500\", penwidth=2];"));
        let svg = drawing.svg();
        assert_eq!(svg.matches("rx=\"5\"").count(), 3);
        assert_eq!(svg.matches("marker-end").count(), 2);
    }

    #[test]
    fn arrows_over_several_levels_pass_the_boxes() {
        let (jobs, _) = star(2);
        let drawing = Drawing::of_jobs("chain".into(), &jobs, &[(0, 1), (1, 2), (0, 2)]);
        let svg = drawing.svg();
        let arrows: Vec<&str> = svg
            .lines()
            .filter(|line| line.contains("fill=\"none\""))
            .collect();
        assert_eq!(arrows.len(), 3, "{svg}");
        assert_eq!(
            arrows.iter().filter(|arrow| arrow.contains(" C")).count(),
            1,
            "{svg}"
        );
    }

    #[test]
    fn svg_is_well_formed_and_boxes_do_not_overlap() {
        let (jobs, edges) = star(5);
        let drawing = Drawing::of_jobs("a & b".into(), &jobs, &edges);
        let svg = drawing.svg();
        assert!(svg.contains("a &amp; b") && svg.contains("job &lt;3&gt;"));
        let mut reader = quick_xml::Reader::from_str(&svg);
        loop {
            match reader.read_event() {
                Ok(quick_xml::events::Event::Eof) => break,
                event => assert!(event.is_ok(), "{event:?}"),
            }
        }
        let boxes = drawing.boxes();
        assert!(
            boxes[1..]
                .windows(2)
                .all(|pair| pair[0].0 + pair[0].2 <= pair[1].0)
        );
        assert!(boxes[1..].iter().all(|spot| spot.1 > boxes[0].1));
    }

    #[test]
    fn quotes_and_control_characters_are_escaped() {
        let drawing = Drawing {
            title: "a\"b\\\u{1b}".into(),
            ..Drawing::default()
        };
        assert!(drawing.dot().contains(r#"label="a\"b\\\\u001b";"#));
        assert!(drawing.svg().contains("</svg>") && !drawing.svg().contains('\u{1b}'));
    }
}
