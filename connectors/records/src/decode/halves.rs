//! Words for the halves and the parts of a day, in many languages.

use std::collections::HashMap;
use std::sync::LazyLock;

/// Which half of the day a word tells.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Half {
    /// The first, from midnight.
    First,
    /// The second, from noon.
    Second,
    /// The one in which the time is nearer to this hour: the middle of what the word means.
    Around(i8),
}

impl Half {
    /// The hour of 24 that an hour of twelve is.
    pub fn hour(self, hour: i8) -> i8 {
        let (early, late) = (hour % 12, hour % 12 + 12);
        match self {
            Self::First => early,
            Self::Second => late,
            Self::Around(middle) => {
                let far = |hour: i8| (hour - middle).abs().min(24 - (hour - middle).abs());
                if far(late) < far(early) || far(late) == far(early) && middle >= 12 { late } else { early }
            }
        }
    }
}

/// The half that a word tells, which has no blanks, no dots and no capitals.
pub(super) fn half(word: &str) -> Option<Half> {
    KNOWN.get(word).copied()
}

static KNOWN: LazyLock<HashMap<&str, Half>> = LazyLock::new(|| {
    let around =
        AROUND.iter().flat_map(|(hour, words)| words.split_whitespace().map(|word| (word, Half::Around(*hour))));
    let first = FIRST.split_whitespace().map(|word| (word, Half::First));
    around.chain(first).chain(SECOND.split_whitespace().map(|word| (word, Half::Second))).collect()
});

// The words are those of several versions of the Unicode CLDR, with some that older ones wrote. A word that means one half in
// one language and the other in another is that of the language with more speakers. Single letters, and short words
// for parts of the day that other languages use for something else, are left out.

const FIRST: &str = "\
    a am ap damanhã de dop dopoldne dumat dumatin eparadites fh fm formiddag förmiddag gh goöň göň günortadanöň \
    manhã mat matin moies nụtụtụ pagi paradite pd pg prepodne priekšp priekšpusdiena priekšpusdienā priešpiet \
    prijepodne prp rn sa safiya sf to vm vorm yb àárɔ̀ àárọ̀ öö öň πμ ам апн апоўначы дп преподне претпл \
    претпладне пријеподне проб таңкы то тң үө ա לפנהצ تد ص صباحا صباحاً صباحًا عم غم ق قبلازظهر قظ چب \
    چۈشتىنبۇرۇن पूर्वाह्ण पूर्वाह्न मपू स পূর্বাহ্ণ পূর্বাহ্ন পূৰ্বাহ্ন ਪੂਦੁ ਸ ପୂ ପୂର୍ବାହ୍ନ முப முற்பகல் ఉ ಪೂ \
    ಪೂರ್ವಾಹ್ನ පෙ පෙව ก่อนเที่ยง ກ່ອນທ່ຽງ နံနက် ጠ ጥዋት ᠦ᠂ᠥ 上午 上昼 上晝 午前 오전 𐐰𐑋 𐑨𐑥";

const SECOND: &str = "\
    ch datarde du eftermiddag eh em epasdites ettermiddag gd gosoň gsoň günortadansoň in ip md nabali nabalị \
    nachm nm nomë nomëttes odp p pasdite pm pop popiet popodne popoldne ptg pēcp pēcpusd pēcpusdiena pēcpusdienā \
    soir soň tarde tk yamma yh ym ös ɔ̀sán μμ апд апоўдні пм попл попладне поподне послијеподне пп слоб тк \
    түштөнкийинки үх հ אחהצ ب بظ بعدازظهر تك غو ك م مساء مساءً چك چۈشتىنكېيىن अपराह्ण अपराह्न मउ सं অপরাহ্ণ \
    অপরাহ্ন অপৰাহ্ন ਬਾਦੁ ਸ਼ ଅ ଅପରାହ୍ନ பிப பிற்பகல் సా ಅ ಅಪರಾಹ್ನ ප පව หลังเที่ยง ຫຼັງທ່ຽງ ညနေ ከ ከሰዓት ᠦ᠂ᠬᠣ ọ̀sán \
    下午 下昼 下晝 午後 오후 𐐹𐑋 𐑐𐑥";

/// The middle of a part of the day, and its words.
const AROUND: &[(i8, &str)] = &[
    (
        0,
        "\
        đêm aadhiraat atnight canolnos emesnatës gauerd gauerdia geceyarısı gecəyarı hatinggabi keskiyö keskiyöllä \
        kesköö keskööl lamiezulnopții medianoite meianoite mesnatë mezzanotte middernacht middernag midn midnat \
        midnatt midnight miezulnopții minuit mitjanit mitternacht miðnætti night nửađêm opoln opolnoci opolnoči \
        opółn opółnocy poln polnoc polnoč ponoć ponoći pusnakts pusnaktī półn północ půln půlnoc raat saasitazausiku \
        tengahmalam usiku vidurnaktis yarimtun éjfél éjjel βράδυ τοβράδυ наполноќ опівночі опівніч полн полночь \
        полноќ полунощ поноћ північ түнжарымы түнорт түнортосу шөнөдунд яримтун ҝеҹәјары կգ․ կեսգիշեր կեսգիշերին \
        בלילה חצות לילה ءتۇنجارىمى آدھیرات رات راتمیں فيالمساء منتصفالليل ن نصفشب نیمهشب आधीरात मध्यरात मध्यरात्र \
        मध्यरात्रि मरा रा रात रात्र রাত্রি রাত্রিতে রাত্রিবেলায় ਅੱਧੀਰਾਤ ਰਾਤ ਰਾਤੀਂ મધ્યરાત્રિ મરાત્રિ રાત્રિ રાત્રે \
        இ இர இரவு நள் நள்ளிரவு అర్ధరాత్రి ಮಧ್ಯರಾತ್ರಿ അ അർദ്ധരാത്രി මැ මැදියම මැදියමටපසු เที่ยงคืน ກາງຄືນ ຕອນກາງຄືນ \
        ທ່ຽງຄືນ သန်းခေါင်ယံ შუაღამე შუაღამეს እኩለሌሊት អធ្រាត្រ 午夜 真夜中 밤 자정",
    ),
    (
        1,
        "\
        gece noću vnoci ночі ноћ ноћу презнощта түнгі تۇنگى ღამ ღამე ღამით",
    ),
    (
        2,
        "\
        delanuit dienag enatës gecə kechasi nachts nakts naktī natë noapte noaptea nuit omnatten ponoči wnocy yöllä \
        öösel кечаси ночи ночь ноќ ноќе ніч пополноќ түн түничинде шөнө ҝеҹә ءتۇن بامداد ل ليلاً రాత్రి ರಾತ್ರಿ \
        กลางคืน 凌晨 夜中",
    ),
    (
        3,
        "\
        aðnóttu damadrugada delamadrugada dinotte entathakusa goiz goizald goizaldea goizaldeko madrugada matinada \
        nacht naktis nangumaga natt natten ngumaga notte nótt pånatta pånatten snachts umaga գիշեր գիշերը գիշերվա \
        գշր ሌሊት በሌሊት",
    ),
    (
        4,
        "\
        לפנותבוקר فجرًا فيالصباح அதி அதிகாலை പുലർച്ചെ පා පාන්දර 새벽 아침",
    ),
    (
        5,
        "\
        hajnal sübh сүбһ प पहाट ভোর ভোরবেলায়",
    ),
    (
        6,
        "\
        alfajiri bore emëngjesit mëngjes ráno ybore ynybore காலை នៅពេលព្រឹក ព្រឹក 早上 清晨",
    ),
    (
        7,
        "\
        наутро",
    ),
    (
        8,
        "\
        aamu aamulla delamañana dieoggend dimineața dimineață ekuseni ertalab hommik hommikul inthemorning jutro \
        mañana morg morgen morgenen morgens morgon morning oggend ommorgenen påmorg påmorgenen påmorgonen rano \
        reggel sabah subah sáng ujutro zjut zjutraj πρωί τοπρωί ранку ранок сутринта утра утро ујутру эрталаб јутро \
        صبح صبحمیں बिहान सुबह ਸਵੇਰੇ સવાર સવારે கா ຕອນເຊົ້າ ເຊົ້າ დილ დილა დილით 朝",
    ),
    (
        9,
        "\
        aðmorgni damañá dimattina goiza goizeko madalingaraw mattina matí mañá morgunn norīta ochtend rytas rīts \
        sochtends səhər ujutru сәһәр таң таңғы ујутро эртеңменен эртңмн өглөө առավոտ առավոտյան առվ בבוקר בוקר تاڭ \
        تاڭعى सकाळ সকাল সকালবেলায় ఉదయం ಬೆಳಗ್ಗೆ രാവിലെ උ උදේ ตอนเช้า เช้า ในตอนเช้า",
    ),
    (
        10,
        "\
        asubuhi dopol dopoledne dopoludnia dopoludnie délelőtt 朝早",
    ),
    (
        11,
        "\
        aamup aamupäivä aamupäivällä dopoldan form formiddagen förm omformiddagen przedpoł przedpołudnie \
        przedpołudniem påformiddagen påförm påförmiddagen vormittag vormittags",
    ),
    (
        12,
        "\
        adhuhuri amiază canoldydd delmediodía domediodía emesditës emini günorta hádegi keskip keskipäivä \
        keskipäivällä keskpäev keskpäeval laamiază madhyanh mediodía meiodia mesditë mezzogiorno midday midi migdia \
        mittag mittags napol napoludnie noon opold opoldne perpiet podne pold poldne poledne poludnie południe pusd \
        pusdienlaiks pusdienlaikā saasitazamchana siang tanghalingtapat tengahhari trưa tushpayti vidurdienis wpoł \
        wpołudnie öğle öğledenönce наобяд напл напладне пладне подне полд полдень полудень пополудні талтүс тушпайти \
        түскі чактүш чт ҝүнорта үддунд կեսօր կեսօրին կօ․ تالءتۇس تۇسكى ظ ظهر ظهرًا म मध्यान्ह நண் நண்பகல் ഉച്ച ම \
        මධ්යාහ්නය ช่วงเที่ยง ตอนบ่าย เที่ยง ในตอนบ่าย ທ່ຽງ မွန်းတည့် შუადღ შუადღე შუადღეს ቀ ቀትር ថ្ងៃត្រង់ 中午 正午 정오",
    ),
    (
        13,
        "\
        eguerd eguerdia eguerdiko mchana дня दु மதி மதியம் ഉച്ചയ്ക്ക് ද දවල් ຕອນທ່ຽງ",
    ),
    (
        14,
        "\
        afternoon alasiri dopahar gündüz kunduzi sahapon tanghali μεσημ μεσημέρι τομεσημέρι кундузи ҝүндүз בצהריים \
        צהריים بعدازچاشت دوپہر دوپہرمیں अपरान्ह दुपार दोपहर দুপুর দুপুরবেলায় ਦੁਪਹਿਰੇ બપોર બપોરે ഉച്ചതിരിഞ്ഞ് บ่าย \
        ຕອນບ່າຍ ສ ສວຍ ສວາຍ နေ့လယ် 昼",
    ),
    (
        15,
        "\
        aprèsmidi chiều delapm delaprèsmidi delpomeriggio diemiddag diena dipomeriggio dupăamiaza dupăamiază délután \
        efterm eftirhádegi etterm ettermiddagen iltap iltapäivä iltapäivällä intheafternoon middag nachmittag \
        nachmittags odpoledne omeftermiddagen pomeriggio popietė popod popol popoldan popoludnie popoludní popoł \
        popołudnie popołudniu poslijepodne prynhawn pärastlõuna pärastlõunal påefterm påeftermiddagen \
        påettermiddagen smiddags síðdegis ynyprynhawn yprynhawn öğledensonra день попод послийеподне түстенкейін \
        түстенкейінгі түшткйн түштөнкийин уподне өдөр ցերեկ ցերեկը ցերեկվա ցրկ بعدالظهر تۇستەنكەيىن تۇستەنكەيىنگى \
        பிற் మధ్యాహ్నం ಮಧ್ಯಾಹ್ನ ნაშუადღ ნაშუადღევი ნაშუადღევს ከሰዓትበኋላ នៅពេលរសៀល រសៀល",
    ),
    (
        16,
        "\
        arrats arratsaldea arratsaldeko delatarde hapon nghapon ntambama petang sore tarda vesprada следобед ع عصر \
        വൈകുന്നേരം හ හවස",
    ),
    (
        17,
        "\
        sagabi אחרהצהריים سہپہر বিকাল மா மாலை ตอนเย็น เย็น ในตอนเย็น",
    ),
    (
        18,
        "\
        akşamüstü axşamüstü jioni shaam απόγ απόγευμα τοαπόγευμα ахшамүстү शाम संध्याकाळ साँझ ਸ਼ਾਮ ਸ਼ਾਮੀਂ સાંજ સાંજે \
        സന്ധ്യ ຕອນແລງ ແລງ 夕方",
    ),
    (
        19,
        "\
        evening gabi nggabi شام شاممیں সন্ধ্যা সন্ধ্যাবেলায়",
    ),
    (
        20,
        "\
        akşam este illalla ilta iluntz iluntzea iluntzeko intheevening kechqurun navečer seara seară uveče vakars \
        vakarā vespre veče večer wiecz wieczorem wieczór zveč zvečer õhtu õhtul веч вече вечер вечера вечерта \
        кечинде кечк кечкурун кечқурун кеш кешкі орой увече בערב ערב كەش كەشى बेलुकी सा सायंकाळ அந்திமா அந்திமாலை \
        సాయంత్రం ಸಂಜೆ ค่ำ საღ საღამო საღამოს នៅពេលល្ងាច ល្ងាច 저녁",
    ),
    (
        21,
        "\
        tối aand abend abends aften avond aðkvöldi dieaand disera dusoir embrëmjes kveld kvelden kväll kvöld malam \
        mbrëmje minnos omaftenen påkvelden påkvällen savonds sera vakaras yrhwyr вечора вечір навечер երեկո երեկոյան \
        երկ රෑ ማታ ምሽት በምሽት 夜",
    ),
    (
        22,
        "\
        axşam delanoche ebusuku gaua gaueko noche noite ахшам ش شب ည នៅពេលយប់ យប់ 夜晚 晚上",
    ),
    (
        23,
        "\
        danoite രാത്രി",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_tells_the_half() {
        for (word, hour, expected) in [
            ("am", 12, 0),
            ("pm", 12, 12),
            ("öö", 9, 9),
            ("ös", 9, 21),
            ("dop", 9, 9),
            ("odp", 9, 21),
            ("pop", 9, 21),
            ("中午", 11, 11),
            ("中午", 1, 13),
            ("凌晨", 12, 0),
            ("晚上", 12, 0),
            ("晚上", 6, 18),
            ("nachts", 11, 23),
            ("nachts", 1, 1),
            ("delatarde", 8, 20),
        ] {
            assert_eq!(half(word).map(|half| half.hour(hour)), Some(expected), "{word} {hour}");
        }
        assert!(half("uhr").is_none());
        let both = FIRST.split_whitespace().filter(|first| SECOND.split_whitespace().any(|second| second == *first));
        assert_eq!(both.collect::<Vec<_>>(), [""; 0]);
    }
}
