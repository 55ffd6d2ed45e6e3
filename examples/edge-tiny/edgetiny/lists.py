"""Plain word lists; `words` splits them. One word once; an underscore stands for a space."""

from __future__ import annotations

from typing import Final


def words(text: str) -> tuple[str, ...]:
    """The words of one of these lists."""
    return tuple(text.split())


VERBS: Final = """
add adjust analyze approve archive assign attach bake block book borrow build buy calculate cancel change charge check
classify clean close collect compare compress compute configure convert cook copy count create crop decode decrypt
delete deliver deploy deposit describe design detach download draw edit encode encrypt enroll estimate evaluate
explain export extract feed fetch filter find flag format generate get group heat hide import inspect install invite
label launch link list load locate lock log map mark match measure merge mix monitor move mute notify open order pack
paint park pause pay pick plan plant play predict prepare print publish query rank rate record refund register reject
release remind remove rename render rent repair replace report request reserve reset resize restore resume retrieve
return review rotate route save scan schedule search select sell send set share ship show sign sort split start stop
store submit summarize suspend swap sync tag test track train transfer translate tune unlock update upgrade upload
validate verify visit wash watch water weigh withdraw wrap
"""

NOUNS: Final = """
account actor address agent airport alarm album animal answer apartment apple appointment area arrow article artist
asset auction author balance ball banana band bank banner barrel basket bathroom battery beach bean bed bell bicycle
bill bird blanket board boat bonus book border bottle bowl box branch bread bridge broker brush bucket budget bug
building bus button cabin cabinet cable cake calendar camera camp campaign candle canvas car card carpet cart case
castle cat category ceiling cell center certificate chain chair channel chapter chart chat chemical cherry child
circle claim class client clinic clock cloud coach coat code coffee coin collection column comment company compound
concert container contact contest contract cookie corner counter country coupon course court cover crop cube cup
currency curtain customer cycle dancer database deal debt degree delivery desert desk device diagram diamond dinner
director discount disk doctor document dog dollar door dragon drawer dress drink driver drone drum duck eagle editor
egg element elevator email employee engine engineer entry envelope episode equation error essay event exam exhibit
expense expert factory farm farmer feature fence festival field film filter finger fish flag flight floor flower
folder forecast forest formula forum fountain fraction frame freezer friend fruit function fund furnace gallery game
garage garden gate gem gene gift glacier glass goal goat grade graph grocery group guest guide guitar hammer harbor
hat heater helmet hero highway hill hobby holiday horse hospital host hotel house hunter ice idea image incident index
ingredient insect instrument insurance interview invoice island item jacket jar jewel job joke journal journey judge
juice jungle key keyboard kitchen kite knight ladder lake lamp language laptop law lawyer layer leader league lecture
lemon lesson letter level library license light line link lion lizard loan locker log logo loop lunch machine magazine
manager market mask match matrix meal medal medicine meeting melon member memo menu message meter mirror mission
mobile model module molecule monitor monkey monument moon mortgage motor mountain movie museum mushroom needle
neighbor nest network newsletter note notebook novel number nurse object ocean offer office olive onion opera option
orange orbit orchestra order organ oven owner package page painter painting pan panel parcel parent park parrot
partner passenger passport password path patient pattern payment pen pencil pepper permit person pet phone photo piano
picnic picture pie pillow pilot pipe pizza plan planet plant plate player playlist poem poet point policy poll pond
pool port portrait position post poster potato prescription president prize problem process product profile program
project property protein province pump puzzle pyramid quarter queen question queue quiz quote rabbit race radar radio
railway ranch receipt recipe record rectangle refund region reminder rental report request reservation resident resort
restaurant review reward ribbon rice ride ring river road robot rocket role roof room root rope route row ruler runner
salad salary sale sample sandwich satellite scale scarf scene scholar school scientist score screen script seal season
seat secret section seed segment seller seminar sensor sequence server session shadow sheep shelf shell ship shipment
shirt shoe shop shoulder shower signal singer site skill sketch smartphone snake soap sofa soldier song soup spider
spoon sport spring square stadium stage stamp star station statue stock stone store storm story stove stranger street
student studio style subject subscription suit summary sunset supplier survey switch symbol table tablet tailor target
task tax taxi teacher team telescope temple tenant tent term terminal theater theme thread ticket tiger tile timer
tire toast token tool tour tower town toy track tractor trade trail trainer transaction tray treasure tree trial
triangle trip truck tunnel turtle tutor umbrella uncle uniform unit user vaccine valley value van vase vector vehicle
vendor venue version village violin visitor voice voucher wagon waiter wallet wardrobe warehouse warning washer weapon
weather website wedding wheel whistle window winner wizard workshop worker workout yacht zebra zone
"""

ADJECTIVES: Final = """
active amber ancient annual automatic average basic beige big bitter black blue bold brave bright broad bronze brown
busy calm careful central cheap circular clean clear clever cold complex cool copper crimson critical cubic curious
daily dark deep default dense detailed digital direct double dry dull dynamic early easy economic electric elegant
empty exact express external extra fair famous fancy fast final fine firm fixed flat flexible foreign formal fragile
free fresh full gentle giant global golden gray green hard harsh heavy hidden high hollow hot huge humid idle indoor
inner instant internal ivory joint junior large late lazy light linear liquid little live local lonely long loose loud
low loyal lucky magenta major manual maximum medium mild minimal minor mobile modern monthly narrow native natural new
nice noble noisy normal odd old open optional orange outdoor outer pale partial pending perfect pink plain polite
portable premium pretty private proud public pure purple quick quiet random rapid rare raw ready recent red regular
remote rich rigid rough round royal rural sad safe salty secure senior sharp shiny short shy silent silver simple
single slim slow small smart smooth social soft solar solid sour spare special spicy square stable standard static
steep strict strong sturdy sudden sunny super sweet swift tall tame temporary thick thin tiny tired total tough
tropical ultra unique urban urgent usual valid vast vegan verbose violet virtual vivid warm weak weekly wet white wide
wild wise wooden yellow young
"""

FIRST_NAMES: Final = """
Aaron Abigail Adam Aisha Alan Alice Amara Amir Amy Ana Andre Anita Anna Anton Arjun Astrid Ben Bianca Boris Brian
Bruno Camila Carla Carlos Carmen Chen Chloe Clara Colin Dana Daniel Daria David Deepa Derek Diana Diego Elena Eli Elif
Elsa Emil Emily Emma Eric Erik Esther Eva Fatima Felix Fiona Frank Freya Gabriel Gita Grace Greta Hana Hannah Harold
Hassan Heidi Helen Henry Hiro Hugo Ian Ibrahim Ines Ingrid Irene Isaac Ivan Jack Jade James Jana Jasmine Jean Joao
Joel Johan Jonas José Judith Julia Kai Karen Karl Kenji Kevin Kofi Laila Lars Laura Leah Leila Leo Liam Lina Linda
Louis Lucia Lucy Luis Lukas Mabel Magnus Maja Malik Marco Maria Marta Martin Mateo Maya Mei Mia Mila Milan Mohamed
Mona Nadia Naomi Nina Noah Nora Olga Oliver Omar Oscar Otto Pablo Paul Paula Pedro Peter Petra Priya Quinn Rafael Raj
Rania Rebecca Rita Robin Rosa Ruth Ryan Sakura Salma Sam Samir Sandra Sara Sean Simon Sofia Stefan Stella Sven Tara
Tariq Tessa Theo Thomas Tina Tobias Uma Ursula Valeria Vera Victor Vikram Viola Walter Wanda Wei Xavier Yara Yasmin
Yuki Yusuf Zara Zoë
"""

LAST_NAMES: Final = """
Abbott Adeyemi Ahmed Alvarez Andersen Bakker Barnes Becker Bennett Berg Bianchi Blake Bondarenko Brooks Burke Campbell
Carter Castillo Chang Clarke Cohen Cooper Costa Cruz Dahl Davies Delgado Diaz Dubois Duncan Edwards Eriksen Farouk
Fischer Fleming Foster Fujita Garcia Gibson Gomez Graham Gupta Haddad Hansen Harper Hayashi Hoffmann Holm Hughes
Ibarra Ito Ivanova Jansen Jensen Johnson Kang Kaplan Keller Khan Kim Klein Kowalski Kumar Lambert Larsen Leclerc
Lindgren Lopez Lund Maier Marino Marsh Mendoza Meyer Miller Moreau Mori Murphy Nakamura Nguyen Nielsen Novak Okafor
Olsen Ortega Owens Palmer Parker Patel Pereira Peterson Petrov Popescu Porter Quintero Ramos Rao Reyes Ricci Rivera
Robinson Rossi Russo Saito Salazar Santos Sato Schmidt Schneider Sharma Shaw Silva Singh Sokolov Stewart Sullivan
Suzuki Tanaka Taylor Torres Tran Turner Ueda Vargas Vasquez Vogel Wagner Walker Wang Watson Weber Wilson Wong Wright
Yamada Yilmaz Young Zhang
"""

CITIES: Final = """
Accra Adelaide Amsterdam Ankara Antwerp Athens Atlanta Auckland Austin Baku Bali Bangkok Barcelona Basel Beijing
Beirut Belgrade Bergen Berlin Bilbao Bogota Bologna Boston Bremen Brisbane Bristol Brussels Bucharest Budapest Cairo
Calgary Cape_Town Cardiff Casablanca Chicago Cologne Copenhagen Cork Cusco Dakar Dallas Delhi Denver Detroit Doha
Dresden Dubai Dublin Durban Edinburgh Florence Frankfurt Geneva Genoa Ghent Glasgow Granada Graz Hamburg Hanoi Havana
Helsinki Hong_Kong Houston Innsbruck Istanbul Izmir Jakarta Kigali Kobe Krakow Kyoto Lagos Leeds Leipzig Lima Lisbon
Liverpool London Los_Angeles Luanda Lyon Madrid Malaga Manchester Manila Marseille Melbourne Miami Milan Montreal
Moscow Mumbai Munich Nairobi Naples New_York Nice Oakland Odessa Osaka Oslo Ottawa Oxford Palermo Paris Perth Phoenix
Pisa Porto Prague Quito Riga Rome Rotterdam Salzburg San_Diego San_Francisco Santiago Sapporo Seattle Seoul Seville
Shanghai Singapore Sofia Split Stockholm Stuttgart Sydney Taipei Tallinn Tampa Tokyo Toronto Toulouse Tunis Turin
Utrecht Valencia Vancouver Venice Verona Vienna Vilnius Warsaw Wellington York Zagreb Zurich
"""

CODE_WORDS: Final = """
adapter admin alias api args array async auth backend backup batch binary block bool branch buffer build byte cache
callback chunk class client cluster codec color command commit common compiler config const context cookie core
counter cron cursor daemon data debug decoder delta deploy diff docker driver encoder endpoint entry enum env event
export factory fetch field file flag float footer format frame gateway graph grid handler hash header heap helper hook
html http icon import index init input insert int item iterator job json kernel key label lambda layout lexer limit
lint list loader local lock logger loop macro main manager merge meta method mock model modal module mutex navbar node
null object offset option output package page parser patch path payload pixel plugin pointer pool port prefix proxy
query queue reader record redis reducer regex registry render repo reset resource result retry root route router
runner schema scope script sdk search seed server service session settings setup shader shared sidebar slot socket
source sql stack state static status storage stream string struct style suffix sync syntax system table task template
tensor test theme thread token trace tree trigger tuple type unit update upload url user util utils validator value
vector view widget worker wrapper writer yaml
"""

FILE_SUFFIXES: Final = words("py js ts json md txt csv yaml toml html css go rs c h sh sql log xml")
FOLDERS: Final = words("src lib app tests docs data config scripts home var tmp etc opt assets build tools")
DOMAINS: Final = words("example.com example.org mail.test company.io school.edu shop.net")
UNITS: Final = {
    "width": ("cm", "meters", "inches"),
    "height": ("cm", "meters", "feet"),
    "length": ("cm", "meters", "miles"),
    "depth": ("cm", "meters"),
    "radius": ("cm", "meters", "km"),
    "distance": ("km", "miles", "meters"),
    "weight": ("kg", "grams", "pounds"),
    "mass": ("kg", "grams"),
    "volume": ("liters", "ml"),
    "speed": ("km/h", "mph"),
    "duration": ("minutes", "hours", "seconds", "days"),
    "timeout": ("seconds", "ms"),
    "temperature": ("degrees",),
    "price": ("dollars", "euros"),
    "cost": ("dollars", "euros"),
    "amount": ("dollars", "euros", "liters"),
    "budget": ("dollars", "euros"),
    "rate": ("percent",),
    "discount": ("percent",),
    "age": ("years",),
    "area": ("acres", "square meters"),
    "power": ("watts", "kw"),
    "voltage": ("volts",),
    "pressure": ("bar", "psi"),
}
CHOICES: Final = {
    "unit": "celsius fahrenheit kelvin metric imperial",
    "color": "red green blue black white yellow purple orange pink gray",
    "size": "small medium large tiny huge",
    "priority": "low medium high urgent critical",
    "level": "beginner basic intermediate advanced expert",
    "format": "json csv xml pdf html text yaml",
    "status": "open closed pending active archived draft",
    "order": "ascending descending random",
    "mode": "fast slow automatic manual silent eco turbo",
    "class": "economy business first premium standard",
    "period": "daily weekly monthly yearly hourly",
    "language": "english french german spanish italian japanese",
    "method": "card cash transfer cheque voucher",
    "type": "single double shared private public",
    "season": "spring summer autumn winter",
    "shape": "round square oval flat curved",
}
