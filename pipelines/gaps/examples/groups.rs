//! How well vectors are grouped, one at a time: `groups FILE [THRESHOLD…]`.
//!
//! FILE has a JSON object in each line, `{"t": GROUP, "v": [numbers]}`. Prints the threshold, the number of groups,
//! precision, recall and F1 by B-cubed (Bagga and Baldwin 1998), the share of vectors whose group kept its number from
//! nine tenths of the file to its end, and the time. Without a threshold, it is chosen by the vectors.

use std::collections::HashMap;
use std::time::Instant;

use serde_json::Value;
use turnflow_gaps::groups::Groups;
use turnflow_gaps::vector::Codes;

fn main() {
    let mut args = std::env::args().skip(1);
    let Some(file) = args.next() else { panic!("groups FILE [THRESHOLD…]") };
    let text = std::fs::read_to_string(file).expect("a readable file");
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("a JSON object")).collect();
    let truth: Vec<i64> = rows.iter().map(|row| row["t"].as_i64().expect("`t`")).collect();
    let vector = |row: &Value| -> Vec<f32> {
        row["v"].as_array().expect("`v`").iter().map(|v| v.as_f64().expect("a number") as f32).collect()
    };
    let vectors: Vec<Vec<f32>> = rows.iter().map(|row| Codes::of(&vector(row)).unit()).collect();
    let thresholds: Vec<Option<f32>> = args.map(|value| value.parse().ok()).collect();
    for threshold in if thresholds.is_empty() { vec![None] } else { thresholds } {
        let begun = Instant::now();
        let mut groups = Groups::new(threshold);
        let mut early = Vec::new();
        for (at, vector) in vectors.iter().enumerate() {
            groups.add(vector);
            groups.tidy();
            if at == vectors.len() * 9 / 10 {
                early = (0..=at).map(|member| groups.of(member)).collect();
            }
        }
        let took = begun.elapsed();
        let found: Vec<i64> = (0..groups.len()).map(|member| groups.of(member) as i64).collect();
        let stable = early.iter().zip(&found).filter(|(early, found)| **early as i64 == **found).count();
        let (precision, recall) = (share(&found, &truth), share(&truth, &found));
        println!(
            "threshold {:.3} groups {} precision {precision:.4} recall {recall:.4} F1 {:.4} stable {:.3} {:.2} s",
            groups.threshold(),
            groups.count(),
            2.0 * precision * recall / (precision + recall),
            stable as f64 / early.len().max(1) as f64,
            took.as_secs_f64()
        );
    }
}

/// The mean share of an item's group of `one` that is in the item's group of `other`, too.
fn share(one: &[i64], other: &[i64]) -> f64 {
    let (mut sizes, mut both) = (HashMap::new(), HashMap::new());
    for (one, other) in one.iter().zip(other) {
        *sizes.entry(*one).or_insert(0.0) += 1.0;
        *both.entry((*one, *other)).or_insert(0.0) += 1.0;
    }
    both.iter().map(|((one, _), count): (&(i64, i64), &f64)| count * count / sizes[one]).sum::<f64>() / one.len() as f64
}
