/// How two files, a and b, compare. A measure that the method does not have is `None`; all are if the files do not compare.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Likeness {
    /// Share of a that is in b. With methods that count repeats it may exceed 1.
    pub containment: Option<f64>,
    /// Share of b that is in a.
    pub contained_in: Option<f64>,
    /// Bytes in both over bytes in either, or the method's equivalent.
    pub resemblance: Option<f64>,
    /// How far apart they are, on the method's own scale; 0 if it sees no difference.
    pub distance: Option<f64>,
}

impl Likeness {
    /// Returns one figure to order by: the larger share, else the resemblance, else a figure that falls from 1 as the
    /// distance grows; 0 if they do not compare.
    pub fn score(&self) -> f64 {
        let shares = [self.containment, self.contained_in].into_iter().flatten().reduce(f64::max);
        let from_distance = || self.distance.map(|distance| 1.0 / (1.0 + distance));
        shares.or(self.resemblance).or_else(from_distance).unwrap_or(0.0)
    }

    /// Returns how b compares with a.
    pub fn swapped(self) -> Likeness {
        Likeness { containment: self.contained_in, contained_in: self.containment, ..self }
    }
}
